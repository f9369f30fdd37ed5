"""The two-layer router: hidden size 256, one output for each column (seed 001, 4.5.3)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..bus.signals import RouterSignals
from .base import Router

HIDDEN = 256


class MlpRouter(Router):
    """logits = W₂ relu(W₁ z + b₁) + b₂; W₂ starts at zero, so every column starts equal."""

    kind = "mlp"

    def __init__(self, *, width: int, columns: tuple[str, ...], seed: int = 0) -> None:
        super().__init__(width=width, columns=columns, seed=seed)
        generator = torch.Generator().manual_seed(seed)
        inner = torch.randn(HIDDEN, width, generator=generator) * (2 / width) ** 0.5
        self.inner_weight = nn.Parameter(inner)
        self.inner_bias = nn.Parameter(torch.zeros(HIDDEN))
        self.weight = nn.Parameter(torch.zeros(len(columns), HIDDEN))
        self.bias = nn.Parameter(torch.zeros(len(columns)))

    def forward(self, z: Tensor, signals: RouterSignals | None = None) -> Tensor:
        """Return logits ``(B, K)`` for z ``(B, D)``."""
        hidden = torch.relu(nn.functional.linear(z, self.inner_weight, self.inner_bias))
        return nn.functional.linear(hidden, self.weight, self.bias)

    def column_parameters(self) -> tuple[nn.Parameter, ...]:
        """Return the outer weight and bias: both have one row for each column."""
        return self.weight, self.bias
