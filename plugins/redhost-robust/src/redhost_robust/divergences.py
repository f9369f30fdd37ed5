"""KL, Jensen–Shannon, and the identity between the two pay-offs.

    L̃(λ, π) = Σ_k λ_k KL(p_k ‖ π)           JSD_λ = Σ_k λ_k KL(p_k ‖ p_λ)
    KL(p_λ ‖ π) = L̃(λ, π) − JSD_λ            for every π, normalised or not

Both pay-offs have the same minimax value max_k KL(p_k ‖ π): KL(p_λ ‖ π) is convex in λ, so its
maximum is at a corner, where JSD_λ is 0.

Source: seed 002 (arXiv 2602.17554), the linearised game; docs/departures.md.
"""

from __future__ import annotations

import numpy as np

from .probability import Array

__all__ = ["entropies", "jensen_shannon", "kl", "linearised_payoff", "mix", "payoff", "worst_kl"]


def entropies(domains: Array) -> Array:
    """Return H(p_k) = −Σ_x p_k(x) log p_k(x), ``(K,)``, nats; 0 log 0 is 0."""
    logs = np.log(np.where(domains > 0, domains, 1.0))
    return np.asarray(-(domains * logs).sum(axis=-1))


def kl(domains: Array, model: Array) -> Array:
    """Return KL(p_k ‖ π) = Σ_x p_k(x) log(p_k(x)/π(x)) for each row, ``(K,)``, nats.

    Args:
        domains: p_k, ``(K, X)``.
        model: π, ``(X,)`` or one for each row ``(K, X)``; need not sum to 1.

    Returns:
        ``(K,)``; ∞ where p_k emits a symbol that π cannot.
    """
    seen = domains > 0
    with np.errstate(divide="ignore"):
        ratio = np.log(np.where(seen, domains, 1.0)) - np.log(np.where(seen, model, 1.0))
    return np.asarray((domains * ratio).sum(axis=-1))


def mix(weights: Array, rows: Array) -> Array:
    """Return Σ_k w_k rows_k, ``(X,)``: p_λ of domains, π_w of experts."""
    return np.asarray(weights @ rows)


def jensen_shannon(weights: Array, domains: Array) -> float:
    """Return JSD_λ = Σ_k λ_k KL(p_k ‖ p_λ), nats: I(k; x) for k ∼ λ, x ∼ p_k."""
    used = weights > 0
    return float(weights[used] @ kl(domains[used], mix(weights, domains)))


def linearised_payoff(weights: Array, domains: Array, model: Array) -> float:
    """Return L̃(λ, π) = Σ_k λ_k KL(p_k ‖ π), nats."""
    used = weights > 0
    return float(weights[used] @ kl(domains[used], model))


def payoff(weights: Array, domains: Array, model: Array) -> float:
    """Return KL(p_λ ‖ π), nats."""
    return float(kl(mix(weights, domains)[None], model)[0])


def worst_kl(domains: Array, model: Array) -> float:
    """Return max_k KL(p_k ‖ π), nats: the loss of π on its worst mixture."""
    return float(kl(domains, model).max())
