"""The game over a box of models in its dual form: one concave function of λ.

    D(λ) = min over {π : m ≤ π ≤ M, Σπ = 1} of Σ_k λ_k KL(p_k ‖ π),    V = max_λ D(λ)
    ∂D/∂λ_k = KL(p_k ‖ π_λ),    π_λ = clip(p_λ/μ, m, M)

For every λ, D(λ) is a lower bound of V; for every π in the box, max_k KL(p_k ‖ π) is an upper one.
The two form the certificate. With m = 0 and M = 1, V is the capacity; with m and M of the experts,
V is the value over G1.

Source: docs/departures.md; Sion 1958 for the exchange of min and max, and Danskin for the gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .bounds import Bounds
from .divergences import entropies
from .probability import Array
from .water import water_filling

__all__ = ["BoxGame", "Point"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Point:
    """The dual function evaluated at one λ.

    Attributes:
        lam: λ, ``(K,)``.
        mixture: p_λ, ``(X,)``.
        model: π_λ, ``(X,)``.
        losses: d_k = KL(p_k ‖ π_λ), ``(K,)``, nats.
    """

    lam: Array
    mixture: Array
    model: Array
    losses: Array

    @property
    def value(self) -> float:
        """D(λ) = λ·d: a lower bound of the game's value."""
        return float(self.lam @ self.losses)

    @property
    def bounds(self) -> Bounds:
        """The lower bound D(λ) and the upper bound max_k d_k, nats."""
        upper = float(self.losses.max())
        return Bounds(lower=self.value, upper=upper, lam=self.lam, host=self.model)


class BoxGame:
    """Evaluates D and KL for fixed domains and a fixed box.

    Args:
        domains: p_k, ``(K, X)``.
        lower: m, ``(X,)``.
        upper: M, ``(X,)``, positive wherever a domain is.
    """

    def __init__(self, domains: Array, lower: Array, upper: Array) -> None:
        self.domains, self.lower, self.upper = domains, lower, upper
        self._entropies = entropies(domains)

    def losses(self, model: Array) -> Array:
        """Return KL(p_k ‖ π) = −H(p_k) − Σ p_k log π, ``(K,)``, with one matrix product."""
        empty = model <= 0
        d = -self._entropies - self.domains @ np.log(np.where(empty, 1.0, model))
        return np.where((self.domains[:, empty] > 0).any(axis=1), np.inf, d)

    def at(self, lam: Array) -> Point:
        """Return the best response to λ; all entries of λ have to be above 0."""
        mixture = lam @ self.domains
        model = water_filling(mixture, self.lower, self.upper)
        return Point(lam=lam, mixture=mixture, model=model, losses=self.losses(model))
