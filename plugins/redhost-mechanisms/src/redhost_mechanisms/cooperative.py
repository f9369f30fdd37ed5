"""Cooperative parts: attention over the outputs of all parts.

    a = softmax(q·k_i / √H),   q = Q x,   k_i = K f_i(x),   y = Σ_i a_i f_i(x)

Source: seed 003, section "Cooperative Modules (Attention Over Outputs)", whose keys take the width
of x and not that of the outputs; Vaswani et al. 2017, "Attention is all you need", equation 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from .dispatch import probabilities
from .linear import seeded_linear
from .naming import numbered
from .widths import check_width, common_widths

__all__ = ["AttentiveEnsemble"]


class AttentiveEnsemble(nn.Module):
    """Parts whose outputs are weighted by attention: the query comes from x, the keys from them.

    The output lies in the convex hull of the parts' outputs, and does not depend on their order.

    Args:
        parts: E parts from D_in to D_out.
        hidden_width: H, the width of queries and keys.
        generator: Generator of the projections' initial weights.
    """

    def __init__(
        self, *, parts: Iterable[nn.Module], hidden_width: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        widths = common_widths(numbered([*self.parts]), who="AttentiveEnsemble")
        self.input_width, self.output_width = widths.input, widths.output
        self.query = seeded_linear(widths.input, hidden_width, generator=generator)
        self.key = seeded_linear(widths.output, hidden_width, generator=generator)

    def attention(self, x: Tensor, answers: Tensor) -> Tensor:
        """Return the weights ``(..., E)`` of outputs ``(..., E, D_out)`` for x ``(..., D_in)``."""
        query: Tensor = self.query(x)  # (..., H)
        keys: Tensor = self.key(answers)  # (..., E, H)
        scores = (keys * query.unsqueeze(-2)).sum(dim=-1)
        return probabilities(scores / math.sqrt(query.shape[-1]))

    def forward(self, x: Tensor) -> Tensor:
        """Return ``(..., D_out)`` for x ``(..., D_in)``."""
        check_width(x, self.input_width, who="AttentiveEnsemble")
        answers = torch.stack([part(x) for part in self.parts], dim=-2)  # (..., E, D_out)
        weights = self.attention(x, answers).unsqueeze(-1).to(answers.dtype)  # (..., E, 1)
        return (weights * answers).sum(dim=-2)
