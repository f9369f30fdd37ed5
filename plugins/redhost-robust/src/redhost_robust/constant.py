"""Constant gates: one weight for each expert, independent of x.

    V(constant) = min over w in the simplex of max_k KL(p_k ‖ Σ_j w_j π_j)

For K disjoint supports it is log Σ_k e^{ε_k} with w = softmax(ε), ε_k = KL(p_k ‖ π_k): on its own
support every model is w_k π_k, and ε_k − log w_k is equal for all k.

Source: seed 002 (arXiv 2602.17554), Theorem 3's constant gate; docs/departures.md.
"""

from __future__ import annotations

import numpy as np

from .bounds import until_closed
from .constant_newton import constant_bounds
from .divergences import mix, worst_kl
from .errors import GameError
from .game import Game
from .probability import Array, probability_vector
from .solution import ConstantSolution, check_tolerance

__all__ = ["constant_value", "disjoint_value", "disjoint_weights", "log_sum_exp", "solve_constant"]


def log_sum_exp(values: Array) -> float:
    """Return log Σ e^{v}, without overflow."""
    most = float(values.max())
    return most + float(np.log(np.exp(values - most).sum())) if np.isfinite(most) else most


def disjoint_value(divergences: Array) -> float:
    """Return log Σ_k e^{ε_k}, nats: V(constant) for disjoint supports, else an upper bound."""
    return log_sum_exp(divergences)


def disjoint_weights(divergences: Array) -> Array:
    """Return softmax(ε), ``(K,)``: the weights that attain `disjoint_value`."""
    scaled = np.exp(divergences - divergences.max())
    return np.asarray(scaled / scaled.sum())


def constant_value(game: Game, weights: Array) -> float:
    """Return max_k KL(p_k ‖ Σ_j w_j π_j) of given weights ``(K',)``, nats.

    Raises:
        GameError: If the weights are not in the simplex of the experts.
    """
    w = probability_vector("weights", weights)
    if len(w) != len(game.experts):
        raise GameError("weights", expected=f"{len(game.experts)} of them", found=f"{len(w)}")
    return worst_kl(game.domains, mix(w, game.experts))


def solve_constant(game: Game, *, tol: float = 1e-8, max_steps: int = 200) -> ConstantSolution:
    """Solve min over w of max_k KL(p_k ‖ π_w), with the same kind of certificate as `solve_gate`.

    Args:
        game: Domains and experts, any number of each.
        tol: Stop once upper − lower is below this, nats; at least 1e-12.
        max_steps: Maximum number of Newton steps, at least 1.

    Raises:
        GameError: If a domain emits a symbol that no expert can: the value is ∞.
    """
    game.require_covered()
    check_tolerance(tol)
    best, steps = until_closed(constant_bounds(game), tol=tol, most=max_steps)
    return ConstantSolution(
        lower=best.lower,
        upper=best.upper,
        lambda_=best.lam,
        model=mix(best.host, game.experts),
        weights=best.host,
        iterations=steps,
        converged=best.gap < tol,
    )
