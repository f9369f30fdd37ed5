"""Interior-point Newton on the concave dual, for games where plain iterations converge slowly.

    maximise D(λ) + τ Σ_k log λ_k over Σλ = 1,  τ → 0

With F = {x : m < π_λ < M}, where π_λ is proportional to p_λ, the second derivative is

    −∂²D/∂λ_j∂λ_k = Σ_{x∈F} p_j p_k / p_λ − p_j(F) p_k(F) / p_λ(F)

(the covariance of the domains' likelihood ratios on F). On the central path max_k d_k − λ·d ≤ K τ,
so the certificate's gap closes with τ. Where D is flat, the barrier's own curvature dominates:
duplicated and nearly duplicated domains, which slow plain iterations to 1/t, cost nothing here.

Derived for this project; the interior-point method is that of Nocedal and Wright 2006, chapter 19.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .bounds import Bounds, best_of
from .probability import Array
from .saddle import BoxGame, Point

__all__ = ["curvature", "newton_bounds"]

_MIX = 0.1  # weight of the uniform λ at the start, to keep away from the boundary
_SHRINK = 0.1
_LEAST_TAU = 1e-13  # divided by K: below any tolerance
_RIDGE = 1e-14  # keeps the system regular for duplicates; changes a step, never the optimum
_SPREAD = 100.0
_BOUNDARY = 0.99
_HALVINGS = 30
_LONG = 0.5
_ROUNDING = 1e-14


def curvature(game: BoxGame, point: Point) -> Array:
    """Return −Λ ∇²D Λ with Λ = diag(λ), ``(K, K)``, positive semidefinite."""
    free = (point.model > game.lower) & (point.model < game.upper) & (point.mixture > 0)
    p = point.mixture[free]
    joint = point.lam[:, None] * game.domains[:, free]  # λ_k p_k(x), (K, |F|)
    root = joint / np.sqrt(p)
    mass = joint.sum(axis=1)
    total = mass.sum()
    return np.asarray(root @ root.T - np.outer(mass, mass) / (total if total > 0 else 1.0))


def newton_bounds(game: BoxGame, start: Bounds) -> Iterator[Bounds]:
    """Yield the best certificate after each step, starting near the λ of `start`."""
    count = len(start.lam)
    point = game.at((1 - _MIX) * start.lam + _MIX / count)
    tau = max(point.bounds.gap, _LEAST_TAU) / count
    z, best = tau / point.lam, start
    while True:
        step, dual = _direction(point, curvature(game, point), z, tau)
        point, length = _search(game, point, step, tau)
        # z stays within a factor of its central value, which keeps the system well scaled.
        centre = tau / point.lam
        z = np.clip(z + length * (dual - z), centre / _SPREAD, centre * _SPREAD)
        best = best_of([best, point.bounds])
        yield best
        if length == 0 or length > _LONG:  # after a short step the point is not near its τ yet
            tau = min(tau, max(_SHRINK * point.bounds.gap, _LEAST_TAU) / count)


def _direction(point: Point, scaled: Array, z: Array, tau: float) -> tuple[Array, Array]:
    """Return Newton's step y = Δλ/λ with λ·y = 0, and the matching multipliers z."""
    lam = point.lam
    matrix = scaled + np.diag(lam * z + _RIDGE)
    right = lam * (point.losses - point.value) + tau
    u, v = np.linalg.solve(matrix, np.stack([right, lam], axis=1)).T
    y = u - v * ((lam @ u) / (lam @ v))
    return y, tau / lam - z * y


def _search(game: BoxGame, point: Point, y: Array, tau: float) -> tuple[Point, float]:
    """Return the first point along y where D + τ Σ log λ is no lower, and its step (0 if none)."""
    length = _BOUNDARY / max(float(-y.min()), _BOUNDARY)
    before = point.value + tau * float(np.log(point.lam).sum())
    rounding = _ROUNDING * (1 + abs(before))
    for _ in range(_HALVINGS):
        lam = point.lam * (1 + length * y)
        tried = game.at(lam / lam.sum())
        after = tried.value + tau * float(np.log(tried.lam).sum())
        if after >= before - rounding:
            return tried, length
        length /= 2
    return point, 0.0
