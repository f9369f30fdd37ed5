"""Plain iterations: Blahut–Arimoto for a box of models, step size 1.

    λ ← λ · exp(d − max d), normalised,    d_k = KL(p_k ‖ π_λ)

Step size 1 is safe, and D(λ) never decreases: D(λ') ≥ D(λ) + d·(λ' − λ) − KL(λ' ‖ λ), because
min_π KL(p ‖ π) is convex in p and KL(p_λ' ‖ p_λ) ≤ KL(λ' ‖ λ). So V − D(λ_t) ≤ log K / t, and the
running mean of π_λ gives an upper bound as good. Steps ∝ 1/√t are hundreds of times slower.

Source: Arimoto 1972 and Blahut 1972 for m = 0, M = 1; docs/departures.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from .bounds import Bounds, best_of
from .probability import Array
from .saddle import BoxGame, Point

__all__ = ["plain_bounds", "plain_points", "plain_step"]

_LEAST_LOG = -500.0
"""Smallest log λ: λ stays above 0, so that π_λ is positive wherever a domain is."""


def plain_step(point: Point) -> Array:
    """Return the next λ ∝ λ · exp(d − max d), ``(K,)``."""
    logs = np.log(point.lam) + point.losses - point.losses.max()
    lam = np.exp(np.maximum(logs - logs.max(), _LEAST_LOG))
    return np.asarray(lam / lam.sum())


def plain_points(game: BoxGame) -> Iterator[Point]:
    """Yield the iterates from the uniform λ, without end; their values never decrease."""
    count = len(game.domains)
    lam = np.full(count, 1 / count)
    while True:
        point = game.at(lam)
        yield point
        lam = plain_step(point)


def plain_bounds(game: BoxGame) -> Iterator[Bounds]:
    """Yield the best certificate after each iterate, including the running mean's upper bound."""
    best: list[Bounds] = []
    total = np.zeros_like(game.lower)
    for count, point in enumerate(plain_points(game), start=1):
        total = total + point.model
        mean = total / count
        of_mean = replace(point.bounds, upper=float(game.losses(mean).max()), host=mean)
        best = [best_of([*best, point.bounds, of_mean])]
        yield best[0]
