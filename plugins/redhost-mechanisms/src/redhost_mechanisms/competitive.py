"""Competitive parts (winner takes all); the selector's gradient includes the parts not chosen.

    y = Σ_i w_i f_i(x),   w = onehot(argmax p),   ∂w/∂θ := ∂p/∂θ,   p = softmax(selector(x))

Source: seed 003, section "Competitive Modules (Winner-Take-All)", which claims a straight-through
gradient but does not implement one; Bengio et al. 2013.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from .dispatch import dispatch, probabilities
from .hard_routing import check_router
from .naming import numbered
from .straight_through import straight_through
from .widths import check_width, common_widths

__all__ = ["WinnerTakesAll"]


class WinnerTakesAll(nn.Module):
    """Parts with a trained selector that chooses exactly one of them for each row.

    A part runs on the rows that it won. While the selector learns, it runs on the other rows too,
    without a gradient of its own, so that the selector's gradient compares all parts; an answer
    there that is not finite counts as 0. `HardRouting` runs only the chosen part in both cases, and
    its gradient depends on that part alone.

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
        rows = x.reshape(-1, self.input_width)  # (N, D_in)
        weights = self.selection(rows)  # (N, E)
        winner = weights.argmax(dim=-1, keepdim=True)  # (N, 1)
        won = dispatch(self.parts, rows, winner, output_width=self.output_width)[:, 0]
        weights = weights.to(won.dtype)
        y = weights.gather(-1, winner) * won
        if weights.requires_grad:
            gradient = (weights - weights.detach()).unsqueeze(-1)  # its value is 0
            y = y + (gradient * self._lost(rows, winner).to(won)).sum(dim=-2)
        return y.reshape(*x.shape[:-1], self.output_width)

    @torch.no_grad()
    def _lost(self, rows: Tensor, winner: Tensor) -> Tensor:
        """Return the losing parts' outputs ``(N, E, D_out)``; 0 for the winner's."""
        lost = rows.new_zeros(len(rows), len(self.parts), self.output_width)
        for i, part in enumerate(self.parts):
            places = (winner[:, 0] != i).nonzero()[:, 0]
            if len(places):
                lost[places, i] = part(rows[places]).nan_to_num(0, 0, 0).to(lost)
        return lost
