"""Hard routing: each row is answered by one expert.

    y = f_e(x),   e = argmax_i p_i,   p = softmax(router(x))

Training rule: y is multiplied by a 1 that carries the gradient of p_e (straight-through), so
∂L/∂p_e = ⟨∂L/∂y, f_e(x)⟩, while the value is exactly the expert's.

Source: seed 003, section "Selective (Routing)", whose router has no gradient. The rule is Fedus et
al. 2021, "Switch Transformer", equation 2, with the scale removed from the value by the
straight-through estimator of Bengio et al. 2013.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from .dispatch import dispatch, probabilities
from .naming import numbered
from .straight_through import straight_through
from .widths import check_width, common_widths, parallel_widths

__all__ = ["HardRouting", "check_router"]


def check_router(router: nn.Module, experts: nn.ModuleList, *, name: str, who: str) -> None:
    """Check that a router takes the experts' input width, and returns one logit for each expert.

    Raises:
        ValueError: It does not; the message names both widths.
    """
    found = parallel_widths({"expert 0": experts[0], name: router}, who=who)[name]
    if found.output != len(experts):
        raise ValueError(
            f"{who}: {len(experts)} experts take {len(experts)} logits, "
            f"found a {name} that gives {found.output}"
        )


class HardRouting(nn.Module):
    """Experts with a router that sends every row to the most probable one, at weight 1.

    Only chosen experts run, each on its own rows: the rows of all calls sum to N.

    Args:
        router: A module that maps ``(..., D_in)`` to logits ``(..., E)``.
        experts: E parts from D_in to D_out.
    """

    def __init__(self, *, router: nn.Module, experts: Iterable[nn.Module]) -> None:
        super().__init__()
        self.router, self.experts = router, nn.ModuleList(experts)
        widths = common_widths(numbered([*self.experts], what="expert"), who="HardRouting")
        check_router(router, self.experts, name="router", who="HardRouting")
        self.input_width, self.output_width = widths.input, widths.output

    def forward(self, x: Tensor) -> Tensor:
        """Return ``(..., D_out)`` for x ``(..., D_in)``."""
        check_width(x, self.input_width, who="HardRouting")
        rows = x.reshape(-1, self.input_width)  # (N, D_in)
        top, index = probabilities(self.router(rows)).max(dim=-1, keepdim=True)  # (N, 1)
        answers = dispatch(self.experts, rows, index, output_width=self.output_width)[:, 0]
        y = answers * straight_through(torch.ones_like(top), top).to(answers.dtype)
        return y.reshape(*x.shape[:-1], self.output_width)
