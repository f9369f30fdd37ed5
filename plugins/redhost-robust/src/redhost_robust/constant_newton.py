"""A primal-dual interior-point method for constant gates.

    minimise t over w in the simplex, f_k(w) = KL(p_k ‖ Σ_j w_j π_j) ≤ t

    Σ_k λ_k ∇f_k + ν = z ≥ 0,    Σλ = 1,    λ_k s_k = τ with s_k = t − f_k,    w_j z_j = τ,    τ → 0

    lower bound for any w and λ in the simplex:  λ·f(w) − log max_j r_j,  r_j = Σ_x p_λ π_j / π_w

The lower bound follows from Jensen's inequality, Σ p_λ log(π_w'/π_w) ≤ log Σ_j w'_j r_j
≤ log max_j r_j, and is tight at the optimum.

Derived for this project; the method is that of Nocedal and Wright 2006, chapter 19.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .bounds import Bounds, best_of
from .divergences import entropies, mix
from .game import Game
from .probability import Array

__all__ = ["constant_bounds"]

_SHRINK = 0.1
_BOUNDARY = 0.99
_HALVINGS = 30
_LONG = 0.5
_SPREAD = 100.0
_LEAST_TAU = 1e-13  # divided by K + K': below any tolerance
_RIDGE = 1e-14  # keeps the system regular for duplicates; changes a step, never the optimum


@dataclass(frozen=True, kw_only=True, eq=False)
class _Iterate:
    """One primal-dual point, with the quantities that its bounds need.

    Attributes:
        weights: w, ``(K',)``, above 0.
        lam: λ, ``(K,)``, above 0.
        multipliers: z, ``(K',)``, above 0.
        bound: t, above every f_k.
        losses: f_k(w), ``(K,)``, nats.
        scores: p_k π_j / π_w summed over x, ``(K, K')``: −∂f_k/∂w_j.
    """

    weights: Array
    lam: Array
    multipliers: Array
    bound: float
    losses: Array
    scores: Array

    @property
    def bounds(self) -> Bounds:
        """The lower bound of λ by Jensen, and the upper bound max_k KL(p_k ‖ π_w), nats."""
        lower = float(self.lam @ self.losses) - math.log(float((self.lam @ self.scores).max()))
        upper = float(self.losses.max())
        return Bounds(lower=lower, upper=upper, lam=self.lam, host=self.weights)

    @property
    def slack(self) -> Array:
        """s_k = t − f_k, ``(K,)``."""
        return self.bound - self.losses


class _Constant:
    """Evaluates f, its gradient and the Lagrangian's curvature.

    Symbols that no domain emits are dropped.
    """

    def __init__(self, game: Game) -> None:
        used = game.domains.max(axis=0) > 0
        self.domains, self.experts = game.domains[:, used], game.experts[:, used]
        self._entropies = entropies(self.domains)

    def losses(self, weights: Array) -> Array:
        return np.asarray(-self._entropies - self.domains @ np.log(mix(weights, self.experts)))

    def at(self, weights: Array, lam: Array, multipliers: Array, bound: float) -> _Iterate:
        scores = (self.domains / mix(weights, self.experts)) @ self.experts.T
        return _Iterate(
            weights=weights,
            lam=lam,
            multipliers=multipliers,
            bound=bound,
            losses=self.losses(weights),
            scores=scores,
        )

    def curvature(self, here: _Iterate) -> Array:
        """Return Σ_k λ_k ∇²f_k = Σ_x p_λ π_i π_j / π_w², ``(K', K')``."""
        root = np.sqrt(mix(here.lam, self.domains)) / mix(here.weights, self.experts)
        scaled = self.experts * root
        return np.asarray(scaled @ scaled.T)


def constant_bounds(game: Game) -> Iterator[Bounds]:
    """Yield the best certificate after each step, starting from uniform weights and uniform λ."""
    problem = _Constant(game)
    count, parts = len(game.domains), len(game.experts)
    lam, w = np.full(count, 1 / count), np.full(parts, 1 / parts)
    top = float(problem.losses(w).max())
    here = problem.at(w, lam, np.ones(parts), top + max(1.0, 0.1 * abs(top)))
    tau = float(lam @ here.slack + 1) / (count + parts)
    best = here.bounds
    while True:
        yield best
        here, length = _newton(problem, here, tau)
        # τ decreases only near the centre, where the certificate's gap is at most (K + K') τ.
        if length == 0 or length > _LONG:
            tau = min(tau, max(_SHRINK * here.bounds.gap, _LEAST_TAU) / (count + parts))
        best = best_of([best, here.bounds])


def _newton(problem: _Constant, here: _Iterate, tau: float) -> tuple[_Iterate, float]:
    """Take one step towards the centre of τ; return the new point and the step length.

    The unknowns are Δw/w, λ'/λ, Δt and ν. With this scaling, and with λ' as an unknown, the system
    stays regular for duplicated experts and for losses that are far below t.
    """
    w, lam, z, s = here.weights, here.lam, here.multipliers, here.slack
    n, k = len(w), len(lam)
    matrix, right = np.zeros((n + k + 2, n + k + 2)), np.zeros(n + k + 2)
    matrix[:n, :n] = problem.curvature(here) * np.outer(w, w) + np.diag(w * z + _RIDGE)
    matrix[n : n + k, :n] = -here.scores * np.outer(lam, w)
    matrix[n : n + k, n : n + k] = -np.diag(lam * s + _RIDGE)
    matrix[n + k, n : n + k] = -lam
    matrix[n + k + 1, :n] = w
    lowest = np.tril_indices(n + k + 2)
    matrix.T[lowest] = matrix[lowest]
    right[:n], right[n : n + k], right[n + k] = tau, -tau, -1
    y, u, (dt, _) = np.split(np.linalg.solve(matrix, right), [n, n + k])
    found = _search(problem, here, w * y, float(dt))
    if found is None:
        return here, 0.0
    new_w, bound, length = found
    slack = bound - problem.losses(new_w)
    new_lam = _central(lam + length * lam * (u - 1), tau / slack)
    new_z = _central(z + length * (tau / w - z * y - z), tau / new_w)
    return problem.at(new_w, new_lam / new_lam.sum(), new_z, bound), length


def _central(values: Array, centre: Array) -> Array:
    """Clip multipliers to within a factor of their central values."""
    return np.asarray(np.clip(values, centre / _SPREAD, centre * _SPREAD))


def _search(
    problem: _Constant, here: _Iterate, dw: Array, dt: float
) -> tuple[Array, float, float] | None:
    """Return the first w and t along the step that stay well inside, and the step length.

    Also requiring the barrier to decrease saved no step on thousands of random games.
    """
    w, s = here.weights, here.slack
    length = _BOUNDARY / max(float((-dw / w).max()), _BOUNDARY)
    for _ in range(_HALVINGS):
        new = w + length * dw
        new, bound = new / new.sum(), here.bound + length * dt
        if (bound - problem.losses(new) > (1 - _BOUNDARY) * s).all():
            return new, bound, length
        length /= 2
    return None
