"""Bits per byte over all mixtures of traffic, in which they are linear (λ are fractions of bytes).

The worst mixture is therefore a single domain, and the mean over the simplex that over domains.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["over_simplex", "recovered", "regrets", "worst"]

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


def regrets(bits: Sequence[float], own: Sequence[float]) -> list[float]:
    """Return the excess of each domain's bits per byte over those of its own expert."""
    return [b - o for b, o in zip(bits, own, strict=True)]


def recovered(
    bits: Sequence[float], *, base: Sequence[float], own: Sequence[float]
) -> list[float | None]:
    """Return (base − system) / (base − own) of every domain; None if the expert has no gain."""
    rows = zip(bits, base, own, strict=True)
    return [(b - s) / (b - o) if b > o else None for s, b, o in rows]


def worst(values: Sequence[float]) -> float:
    """Return the value at the worst mixture."""
    return max(values)


def over_simplex(
    bits: Sequence[float], own: Sequence[float], *, draws: int, seed: int = 0
) -> dict[str, Any]:
    """Return mean and worst of bits per byte and of regret, and quantiles over Dirichlet(1).

    Args:
        bits: The system's bits per byte, by domain.
        own: The own expert's bits per byte, by domain.
        draws: Number of mixtures drawn.
        seed: Seed of the draws.
    """
    lam = np.random.default_rng(seed).dirichlet(np.ones(len(bits)), size=draws)
    above = regrets(bits, own)
    return {
        "mean": float(np.mean(bits)),
        "worst": worst(bits),
        "mean_regret": float(np.mean(above)),
        "worst_regret": worst(above),
        "quantiles": _quantiles(lam @ np.array(bits)),
        "regret_quantiles": _quantiles(lam @ np.array(above)),
    }


def _quantiles(values: np.ndarray) -> dict[str, float]:
    found = np.quantile(values, QUANTILES)
    return {f"{q:g}": float(v) for q, v in zip(QUANTILES, found, strict=True)}
