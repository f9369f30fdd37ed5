"""The result of a solver: a value with its certificate, a lower and an upper bound."""

from __future__ import annotations

from dataclasses import dataclass

from .errors import GameError
from .probability import Array

__all__ = ["Certificate", "ConstantSolution", "GateSolution", "check_tolerance"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Certificate:
    """A solved game. The true value is between `lower` and `upper`, converged or not.

    Attributes:
        lower: The value that nature can guarantee with `lambda_`, nats.
        upper: max_k KL(p_k ‖ `model`), which the host can guarantee not to exceed, nats.
        lambda_: λ*, the worst mixture of domains, ``(K,)``.
        model: π*, the robust model, ``(X,)``; sums to 1.
        iterations: Total number of steps, plain and Newton.
        converged: Whether upper − lower < tol.
    """

    lower: float
    upper: float
    lambda_: Array
    model: Array
    iterations: int
    converged: bool

    @property
    def value(self) -> float:
        """The midpoint of the certificate, nats; its error is at most half the gap."""
        return (self.lower + self.upper) / 2

    @property
    def gap(self) -> float:
        """Upper − lower, nats."""
        return self.upper - self.lower


@dataclass(frozen=True, kw_only=True, eq=False)
class GateSolution(Certificate):
    """The solution over G1.

    Attributes:
        gate: g(x, j) with π_g = `model`, ``(X, K')``, rows in the simplex.
    """

    gate: Array


@dataclass(frozen=True, kw_only=True, eq=False)
class ConstantSolution(Certificate):
    """The solution over gates that do not depend on x.

    Attributes:
        weights: w with Σ_j w_j π_j = `model`, ``(K',)``, in the simplex.
    """

    weights: Array


def check_tolerance(tol: float) -> None:
    """Refuse a tolerance that rounding cannot reach.

    Raises:
        GameError: If it is below 1e-12 or not a number.
    """
    if not tol >= 1e-12:  # noqa: PLR2004 - NaN as well
        raise GameError("tol", expected="at least 1e-12 nats", found=f"{tol}")
