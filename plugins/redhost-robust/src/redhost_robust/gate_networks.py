"""Gates trained by gradient: a table for small alphabets, a network over features of x.

Both start as the uniform gate (θ = 0 in the last layer), return logits, and hold no state other
than their parameters.
"""

from __future__ import annotations

import torch
from redhost_mechanisms.linear import seeded_linear, zero_linear
from torch import Tensor, nn

__all__ = ["NetworkGate", "TabularGate"]


class TabularGate(nn.Module):
    """One free logit for each symbol and expert, float64.

    Args:
        symbols: X.
        experts: K'.
    """

    def __init__(self, symbols: int, experts: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(symbols, experts, dtype=torch.float64))

    def forward(self, symbols: Tensor) -> Tensor:
        """Return logits ``(…, K')`` for symbols ``(…)``, int64."""
        return self.table[symbols]


class NetworkGate(nn.Module):
    """One tanh hidden layer over features of x.

    Args:
        features: F, the width of a feature vector.
        experts: K'.
        hidden: Units of the hidden layer.
        seed: Seed of the first layer's weights.
    """

    def __init__(self, features: int, experts: int, *, hidden: int = 32, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.read = seeded_linear(features, hidden, generator=generator)
        self.write = zero_linear(hidden, experts)

    def forward(self, features: Tensor) -> Tensor:
        """Return logits ``(…, K')`` for features ``(…, F)``."""
        logits: Tensor = self.write(self.read(features).tanh())
        return logits
