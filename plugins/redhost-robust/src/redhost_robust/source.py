"""Samples for the stochastic algorithm: rows of every domain and of every expert."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from .errors import GameError
from .game import Game

__all__ = ["FiniteSource", "Source", "draw", "running_sums"]


class Source(Protocol):
    """Samples x with the experts' log-probabilities. Gates take `inputs`, any encoding of x."""

    domains: int
    experts: int

    def domain_batch(self, rows: int) -> tuple[Tensor, Tensor]:
        """Draw x ∼ p_k: inputs ``(K, B, …)`` and log π_j(x) ``(K, B, K')``."""
        ...

    def expert_batch(self, rows: int) -> Tensor:
        """Draw x ∼ π_j: inputs ``(K', B, …)``."""
        ...


class FiniteSource:
    """Samples of a finite game, in float64.

    Args:
        game: Domains and experts.
        features: The gate's input for each symbol, ``(X, F)``; None for the symbol's index.
        seed: Seed of the samples.

    Raises:
        GameError: If there is not one feature vector for each symbol, or the game's value is ∞.
    """

    def __init__(self, game: Game, *, features: Tensor | None = None, seed: int = 0) -> None:
        game.require_covered()
        if features is not None and (features.ndim != 2 or len(features) != game.symbols):  # noqa: PLR2004
            raise GameError(
                "features", expected=f"({game.symbols}, F)", found=f"{tuple(features.shape)}"
            )
        self.domains, self.experts = len(game.domains), len(game.experts)
        self.inputs = torch.arange(game.symbols) if features is None else features
        experts = torch.from_numpy(game.experts.copy())
        self._log_experts = experts.log().T.contiguous()  # (X, K')
        self._domain_sums = running_sums(torch.from_numpy(game.domains.copy()))
        self._expert_sums = running_sums(experts)
        self._generator = torch.Generator().manual_seed(seed)

    def domain_batch(self, rows: int) -> tuple[Tensor, Tensor]:
        """Draw x ∼ p_k: inputs ``(K, B, …)`` and log π_j(x) ``(K, B, K')``."""
        symbols = draw(self._domain_sums, rows, generator=self._generator)
        return self.inputs[symbols], self._log_experts[symbols]

    def expert_batch(self, rows: int) -> Tensor:
        """Draw x ∼ π_j: inputs ``(K', B, …)``."""
        return self.inputs[draw(self._expert_sums, rows, generator=self._generator)]


def draw(sums: Tensor, rows: int, *, generator: torch.Generator) -> Tensor:
    """Draw symbols by inverting the cumulative distributions ``(K, X)``: ``(K, B)``, int64."""
    u = torch.rand(len(sums), rows, dtype=sums.dtype, generator=generator)
    return torch.searchsorted(sums, u, right=True)


def running_sums(rows: Tensor) -> Tensor:
    """Return Σ_{x' ≤ x} p(x') ``(K, X)``; exactly 1 from the last symbol with p(x) > 0 on."""
    sums = rows.cumsum(dim=1)
    return sums / sums[:, -1:]
