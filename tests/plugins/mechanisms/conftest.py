"""Seeded rows and layers, drawn without touching the global random state."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from redhost_mechanisms.linear import seeded_linear
from torch import Tensor, nn

D = 8


@pytest.fixture(scope="session")
def rows() -> Callable[..., Tensor]:
    """Return ``rows(*leading, width=8, seed=0)``: standard normal ``(*leading, width)``."""

    def draw(*leading: int, width: int = D, seed: int = 0) -> Tensor:
        return torch.randn(*leading, width, generator=torch.Generator().manual_seed(seed))

    return draw


@pytest.fixture(scope="session")
def linears() -> Callable[..., list[nn.Linear]]:
    """Return ``linears(count, taken=8, given=8, seed=1)``: layers with random weights."""

    def build(count: int, taken: int = D, given: int = D, *, seed: int = 1) -> list[nn.Linear]:
        g = torch.Generator().manual_seed(seed)
        return [seeded_linear(taken, given, generator=g) for _ in range(count)]

    return build
