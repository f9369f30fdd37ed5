"""Additive composition: every part's output is added to the base's.

    y = base(x) + Σ_i f_i(x)

Source: seed 003, section "Additive (Residual)"; He et al. 2016, "Deep residual learning for image
recognition", equation 1 (base = identity).
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

from .naming import numbered
from .widths import check_width, common_widths

__all__ = ["Additive"]


class Additive(nn.Module):
    """A base plus the sum of parts that all take the same x as input.

    If all parts return zero, the output is bitwise identical to the base's. The order of the parts
    makes no difference beyond the rounding of a sum.

    Args:
        base: Maps ``(..., D_in)`` to ``(..., D_out)``; `nn.Identity` for a residual.
        parts: Modules that map the same widths; may be empty.
    """

    def __init__(self, *, base: nn.Module, parts: Iterable[nn.Module] = ()) -> None:
        super().__init__()
        self.base, self.parts = base, nn.ModuleList(parts)
        widths = common_widths({"base": base} | numbered([*self.parts]), who="Additive")
        self.input_width, self.output_width = widths.input, widths.output

    def forward(self, x: Tensor) -> Tensor:
        """Return ``(..., D_out)`` for x ``(..., D_in)``."""
        check_width(x, self.input_width, who="Additive")
        y: Tensor = self.base(x)
        for part in self.parts:
            y = y + part(x)
        return y
