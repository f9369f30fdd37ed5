"""The exact solver for normalised gates, and the capacity, which bounds their value from below.

Plain iterations run first; once their gap stops halving, Newton on the concave dual takes over.
Both keep the same certificate, so the switch can cost time but not correctness.

Source: seed 002 (arXiv 2602.17554), the minimax game over G1; docs/departures.md.
"""

from __future__ import annotations

import numpy as np

from .bounds import until_closed
from .game import Game
from .gates import envelope, gate_of_model
from .iterations import plain_bounds
from .newton import newton_bounds
from .probability import Array, probability_rows
from .saddle import BoxGame
from .solution import Certificate, GateSolution, check_tolerance

__all__ = ["capacity", "solve_gate"]

_PATIENCE = 20
"""Plain iterations within which the gap has to halve; usual games halve it in 5 to 15."""


def solve_gate(
    game: Game, *, tol: float = 1e-8, max_plain: int = 400, max_newton: int = 100
) -> GateSolution:
    """Solve min over g ∈ G1 of max over λ of KL(p_λ ‖ π_g).

    Args:
        game: Domains and experts, any number of each.
        tol: Stop once upper − lower is below this, nats; at least 1e-12.
        max_plain: Maximum number of plain iterations, at least 1.
        max_newton: Maximum number of Newton steps once the plain ones stall; 0 for none.

    Raises:
        GameError: If a domain emits a symbol that no expert can: the value is ∞.
    """
    game.require_covered()
    lower, upper = envelope(game.experts)
    found = _solve_box(
        BoxGame(game.domains, lower, upper), tol=tol, max_plain=max_plain, max_newton=max_newton
    )
    return GateSolution(**vars(found), gate=gate_of_model(found.model, game.experts))


def capacity(domains: Array, *, tol: float = 1e-8) -> Certificate:
    """Solve C = max_λ JSD_λ, the capacity of the channel k → x, nats.

    No normalised model of any kind has a smaller worst-case KL: C ≤ V(G1) ≤ V(constant).
    Exact experts gain nothing from a gate that depends on x: then V(G1) = V(constant) = C.

    Args:
        domains: p_k, ``(K, X)``.
        tol: As in `solve_gate`.

    Returns:
        The certificate; its model is the mixture p_λ*.
    """
    rows = probability_rows("domains", domains)
    box = BoxGame(rows, np.zeros(rows.shape[1]), np.ones(rows.shape[1]))
    return _solve_box(box, tol=tol, max_plain=400, max_newton=100)


def _solve_box(box: BoxGame, *, tol: float, max_plain: int, max_newton: int) -> Certificate:
    """Close the certificate of a box with plain iterations, then with Newton."""
    check_tolerance(tol)
    best, steps = until_closed(plain_bounds(box), tol=tol, most=max_plain, patience=_PATIENCE)
    if best.gap >= tol and max_newton > 0:
        best, more = until_closed(newton_bounds(box, best), tol=tol, most=max_newton)
        steps += more
    return Certificate(
        lower=best.lower,
        upper=best.upper,
        lambda_=best.lam,
        model=best.host,
        iterations=steps,
        converged=best.gap < tol,
    )
