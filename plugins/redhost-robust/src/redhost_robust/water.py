"""Water-filling: the model in a box that is closest to a given distribution.

    argmin over {π : m ≤ π ≤ M, Σπ = 1} of KL(p ‖ π)  =  clip(p/μ, m, M),   one scalar μ

The Lagrangian of −Σ p log π + μ(Σπ − 1) is separable, and its minimum on [m, M] is p/μ clipped.
With the level s = 1/μ, Σ clip(s p, m, M) is piecewise linear and never decreases in s. Newton's
step solves the correct piece exactly, and bisection on log μ keeps it in its bracket.

Source: docs/departures.md.
"""

from __future__ import annotations

import math

import numpy as np

from .probability import Array

__all__ = ["water_filling"]

_STEPS = 200
_CLOSE = 4e-16
_LARGEST = 1e300


def water_filling(p: Array, lower: Array, upper: Array) -> Array:
    """Return the π in the box with the smallest KL(p ‖ π), ``(X,)``.

    Args:
        p: A distribution, ``(X,)``.
        lower: m, ``(X,)``, with Σm ≤ 1.
        upper: M ≥ m, ``(X,)``, with ΣM ≥ 1.

    Returns:
        π. If every symbol with p > 0 is at M, the remaining mass is spread in proportion to M − m.
    """
    seen = p > 0
    most = np.where(seen, upper, lower)
    missing = 1 - most.sum()
    if missing >= 0:  # every symbol with p > 0 is at its M; the other symbols do not affect KL
        return most + _share(missing, np.where(seen, 0.0, upper - lower))
    if lower.sum() >= 1:
        return lower.copy()
    return np.clip(_level(p, lower, upper) * p, lower, upper)


def _share(missing: float, room: Array) -> Array:
    """Spread a mass in proportion to the available room."""
    total = room.sum()
    return room * min(1.0, missing / total) if total > 0 else room


def _level(p: Array, lower: Array, upper: Array) -> float:
    """Return s = 1/μ with Σ clip(s p, m, M) = 1."""
    low, high, s = 0.0, math.inf, 1.0
    for _ in range(_STEPS):
        filled = s * p
        over = float(np.clip(filled, lower, upper).sum() - 1)
        if abs(over) <= _CLOSE:
            break
        low, high = (low, s) if over > 0 else (s, high)
        slope = float(p[(filled > lower) & (filled < upper)].sum())
        newton = s - over / slope if slope > 0 else math.nan
        following = newton if low < newton < high else _middle(low, high)
        if abs(following - s) <= _CLOSE * s:
            break
        s = following
    return s


def _middle(low: float, high: float) -> float:
    """Return the geometric mean of a bracket; an open end moves by increasing steps.

    The first level tried is 1, so a bracket open above has low ≥ 1, and one open below high ≤ 1.
    """
    if high == math.inf:
        return min(4 * low * low, _LARGEST)
    if low == 0:
        return max(high * high / 4, 1 / _LARGEST)
    return math.sqrt(low) * math.sqrt(high)
