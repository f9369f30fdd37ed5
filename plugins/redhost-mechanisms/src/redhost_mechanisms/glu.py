"""Gated linear unit: one half of a projection gates the other.

    y = a ⊙ σ(b),   [a, b] = W x + c

Source: seed 003, section "Multiplicative (Gating)"; Dauphin et al. 2017, "Language modeling with
gated convolutional networks", equation 1.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .linear import seeded_linear
from .widths import check_width

__all__ = ["GLU"]


class GLU(nn.Module):
    """A gated linear unit with its projection.

    Args:
        input_width: D_in.
        output_width: D_out.
        generator: Generator of the initial weights.
    """

    def __init__(self, *, input_width: int, output_width: int, generator: torch.Generator) -> None:
        super().__init__()
        self.input_width, self.output_width = input_width, output_width
        self.linear = seeded_linear(input_width, 2 * output_width, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``(..., D_out)`` for x ``(..., D_in)``."""
        check_width(x, self.input_width, who="GLU")
        return nn.functional.glu(self.linear(x), dim=-1)
