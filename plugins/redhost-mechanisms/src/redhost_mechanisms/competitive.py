"""Competitive parts (winner takes all); the selector's gradient includes the parts not chosen.

    y = Σ_i w_i f_i(x),   w = onehot(argmax p),   ∂w/∂θ := ∂p/∂θ,   p = softmax(selector(x))

Source: seed 003, section "Competitive Modules (Winner-Take-All)", which claims a straight-through
gradient but does not implement one; Bengio et al. 2013.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from .dispatch import probabilities
from .hard_routing import check_router
from .naming import numbered
from .straight_through import straight_through
from .widths import check_width, common_widths

__all__ = ["WinnerTakesAll"]


class WinnerTakesAll(nn.Module):
    """Parts with a trained selector that chooses exactly one of them for each row.

    All parts run on all rows, so that the selector's gradient compares them. `HardRouting` runs
    only the chosen part, and its gradient depends on that part alone.

    Args:
        selector: A module that maps ``(..., D_in)`` to logits ``(..., E)``.
        parts: E parts from D_in to D_out.
    """

    def __init__(self, *, selector: nn.Module, parts: Iterable[nn.Module]) -> None:
        super().__init__()
        self.selector, self.parts = selector, nn.ModuleList(parts)
        widths = common_widths(numbered([*self.parts]), who="WinnerTakesAll")
        check_router(selector, self.parts, name="selector", who="WinnerTakesAll")
        self.input_width, self.output_width = widths.input, widths.output

    def selection(self, x: Tensor) -> Tensor:
        """Return one-hot weights ``(..., E)`` for x ``(..., D_in)``, with softmax's gradient."""
        p = probabilities(self.selector(x))
        one_hot = torch.zeros_like(p).scatter(-1, p.argmax(dim=-1, keepdim=True), 1.0)
        return straight_through(one_hot, p)

    def forward(self, x: Tensor) -> Tensor:
        """Return the chosen parts' outputs ``(..., D_out)`` for x ``(..., D_in)``."""
        check_width(x, self.input_width, who="WinnerTakesAll")
        answers = torch.stack([part(x) for part in self.parts], dim=-2)  # (..., E, D_out)
        weights = self.selection(x).unsqueeze(-1).to(answers.dtype)  # (..., E, 1)
        return (weights * answers).sum(dim=-2)
