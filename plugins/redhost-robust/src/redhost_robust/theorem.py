"""Theorem 3: the robust gate's guarantee on every mixture.

    KL(p_λ ‖ π_g*) ≤ log Σ_k e^{ε_k} − H_σ^{λ*}(K|X) − JSD_λ        for all λ

    ε_k = KL(p_k ‖ π_k),  σ = softmax(ε),  π_σ = Σ_k σ_k π_k,
    H_σ^λ(K|X) = Σ_k λ_k E_{x∼p_k}[−log(σ_k π_k(x) / π_σ(x))]

Why: the first two terms are L̃(λ*, π_σ), the constant gate σ's pay-off at nature's best mixture.
g* is not worse there, and L̃(λ, π_g*) is largest at λ*. JSD_λ comes from `divergences`' identity.

Source: seed 002 (arXiv 2602.17554), Theorem 3; docs/departures.md.
"""

from __future__ import annotations

import math

import numpy as np

from .constant import disjoint_weights, log_sum_exp
from .divergences import jensen_shannon, kl, mix
from .errors import GameError
from .game import Game
from .probability import Array, probability_vector

__all__ = ["conditional_entropy", "expert_divergences", "theorem3_bound"]


def expert_divergences(game: Game) -> Array:
    """Return ε_k = KL(p_k ‖ π_k) of each expert on its own domain, ``(K,)``, nats.

    Raises:
        GameError: If the experts are not one for each domain.
    """
    game.require_own_experts()
    return kl(game.domains, game.experts)


def conditional_entropy(game: Game, *, mixture: Array, weights: Array) -> float:
    """Return H_w^λ(K|X) = Σ_k λ_k E_{p_k}[−log(w_k π_k(x)/π_w(x))], nats, never negative.

    It measures how much the experts overlap: 0 for disjoint supports.

    Args:
        game: One expert for each domain.
        mixture: λ, ``(K,)``.
        weights: w, ``(K,)``; σ in Theorem 3.

    Returns:
        The entropy; ∞ if λ_k > 0 for a domain k that its own expert cannot emit, or with w_k = 0.

    Raises:
        GameError: If the experts are not one for each domain, or a vector does not fit.
    """
    game.require_own_experts()
    lam, w = _simplex(game, "mixture", mixture), _simplex(game, "weights", weights)
    total = mix(w, game.experts)
    posterior = w[:, None] * game.experts / np.where(total > 0, total, 1.0)
    seen = game.domains > 0
    with np.errstate(divide="ignore"):
        logs = np.log(np.where(seen, posterior, 1.0))
    surprise = -(game.domains * logs).sum(axis=1)
    return max(0.0, float(lam[lam > 0] @ surprise[lam > 0]))


def theorem3_bound(game: Game, *, lambda_star: Array, mixture: Array) -> float:
    """Return log Σ e^{ε_k} − H_σ^{λ*}(K|X) − JSD_λ: an upper bound of KL(p_λ ‖ π_g*), nats.

    Args:
        game: One expert for each domain.
        lambda_star: λ* of the solved game, ``(K,)``.
        mixture: λ, the mixture that the bound is for, ``(K,)``.

    Returns:
        The bound; ∞ if an expert cannot emit a symbol that its domain emits.

    Raises:
        GameError: If the experts are not one for each domain, or a vector does not fit.
    """
    epsilon = expert_divergences(game)
    lam = _simplex(game, "mixture", mixture)
    if not np.isfinite(epsilon).all():
        return math.inf
    sigma = disjoint_weights(epsilon)
    overlap = conditional_entropy(game, mixture=lambda_star, weights=sigma)
    return log_sum_exp(epsilon) - overlap - jensen_shannon(lam, game.domains)


def _simplex(game: Game, name: str, vector: Array) -> Array:
    """Return a checked point of the simplex over the domains."""
    checked = probability_vector(name, vector)
    if len(checked) != len(game.domains):
        raise GameError(name, expected=f"{len(game.domains)} weights", found=f"{len(checked)}")
    return checked
