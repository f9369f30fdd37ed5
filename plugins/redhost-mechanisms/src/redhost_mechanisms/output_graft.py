"""Output graft: how a part's output is merged into a host's layer.

    add        y = host + α · part
    replace    y = (1 − α) · host + α · part             α clamped to [0, 1]
    concat     y = [host, α · part]
    gate       y = host ⊙ g(α · part),  g(r) = min(1, 2σ(r))

Source: seed 003, section "Output Grafting", whose gate halves the host; α from 0 as in Bachlechner
et al. 2021, "ReZero is all you need".
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from .gated import open_gate
from .naming import check_name
from .straight_through import straight_through
from .widths import check_width

__all__ = ["GraftMode", "OutputGraft"]

GraftMode = Literal["add", "replace", "concat", "gate"]
"""How the part's output is combined with the layer's own output."""


class OutputGraft(nn.Module):
    """The name of a host's layer and the way a part changes its output.

    At α = 0 the host's values are bitwise unchanged; `concat` then appends zeros. A part that
    starts at zero (`init_for_grafting`) needs an α other than 0: if both were 0, neither would
    have a gradient.

    Args:
        target: The layer's name, as in `nn.Module.named_modules`.
        width: D, the width of the layer's output.
        part_width: P, the width of the part's output; D by default. Only `concat` supports
            another width, and the layers after it must then accept D + P.
        mode: See the equations above.
        alpha: The initial α.
        learnable: Whether α is trained.

    Raises:
        ValueError: The mode is unknown, or does not support this part's width.
    """

    alpha: Tensor

    def __init__(
        self,
        *,
        target: str,
        width: int,
        part_width: int | None = None,
        mode: GraftMode = "add",
        alpha: float = 0.0,
        learnable: bool = True,
    ) -> None:
        super().__init__()
        check_name(mode, get_args(GraftMode), what="mode")
        self.target = target
        self.mode: GraftMode = mode
        self.width, self.part_width = width, width if part_width is None else part_width
        if mode != "concat" and self.part_width != width:
            raise ValueError(
                f"OutputGraft: mode {mode!r} at layer {target!r} takes a part of width {width}, "
                f"found {self.part_width}; project it with AdaptiveGraft"
            )
        value = torch.tensor(float(alpha))
        if learnable:
            self.alpha = nn.Parameter(value)
        else:
            self.register_buffer("alpha", value)

    @property
    def output_width(self) -> int:
        """The layer's output width with the graft: D, or D + P for `concat`."""
        return self.width + self.part_width if self.mode == "concat" else self.width

    def forward(self, host: Tensor, part: Tensor) -> Tensor:
        """Return the layer's new output.

        Args:
            host: The layer's own output, ``(..., D)``.
            part: The part's output, ``(..., P)``.

        Returns:
            ``(..., D)``, or ``(..., D + P)`` for `concat`.
        """
        check_width(host, self.width, who=f"OutputGraft at layer {self.target!r}")
        check_width(part, self.part_width, who=f"OutputGraft at layer {self.target!r}, its part")
        match self.mode:
            case "add":
                return host + self.alpha * part
            case "replace":
                alpha = straight_through(self.alpha.clamp(0, 1), self.alpha)
                return (1 - alpha) * host + alpha * part
            case "concat":
                return torch.cat([host, self.alpha * part], dim=-1)
            case "gate":
                return host * open_gate(self.alpha * part)
