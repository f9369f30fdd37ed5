"""The linear router: logits = W_r z + b (seed 001, section 4.4.2)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..bus.signals import RouterSignals
from .base import Router


class LinearRouter(Router):
    """One row of weights for each column; starts at zero, so every column starts equal."""

    kind = "linear"

    def __init__(self, *, width: int, columns: tuple[str, ...], seed: int = 0) -> None:
        super().__init__(width=width, columns=columns, seed=seed)
        self.weight = nn.Parameter(torch.zeros(len(columns), width))
        self.bias = nn.Parameter(torch.zeros(len(columns)))

    def forward(self, z: Tensor, signals: RouterSignals | None = None) -> Tensor:
        """Return logits ``(B, K)`` for z ``(B, D)``."""
        return nn.functional.linear(z, self.weight, self.bias)

    def column_parameters(self) -> tuple[nn.Parameter, ...]:
        """Return weight and bias: both have one row for each column."""
        return self.weight, self.bias
