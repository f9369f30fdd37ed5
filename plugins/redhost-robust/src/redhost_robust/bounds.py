"""The certificate that every exact solver keeps, and the stopping rule on its gap."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from .probability import Array

__all__ = ["Bounds", "best_of", "until_closed"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Bounds:
    """A lower and an upper bound on the value of a game, and the moves that attain them.

    Attributes:
        lower: The value that nature can guarantee, nats.
        upper: The value that the host can guarantee not to exceed, nats.
        lam: λ of the lower bound, ``(K,)``.
        host: The host's move of the upper bound: a model ``(X,)`` or weights ``(K',)``.
    """

    lower: float
    upper: float
    lam: Array
    host: Array

    @property
    def gap(self) -> float:
        """Upper − lower, nats."""
        return self.upper - self.lower


def best_of(bounds: Iterable[Bounds]) -> Bounds:
    """Return the largest lower and the smallest upper bound, each with its own move."""
    every = list(bounds)
    low, high = max(every, key=lambda b: b.lower), min(every, key=lambda b: b.upper)
    return Bounds(lower=low.lower, upper=high.upper, lam=low.lam, host=high.host)


def until_closed(
    steps: Iterator[Bounds], *, tol: float, most: int, patience: int | None = None
) -> tuple[Bounds, int]:
    """Iterate bounds that never get worse; return the last ones and the number of steps.

    Args:
        steps: An endless iterator of bounds.
        tol: Stop once the gap is below this, nats.
        most: Maximum number of steps, at least 1.
        patience: Stop once the gap has not halved in so many steps; None never stops early.
    """
    best = next(steps)
    gaps = [best.gap]
    while best.gap >= tol and len(gaps) < most:
        if patience and len(gaps) > patience and gaps[-1] > gaps[-1 - patience] / 2:
            break
        best = next(steps)
        gaps.append(best.gap)
    return _uncrossed(best), len(gaps)


def _uncrossed(best: Bounds) -> Bounds:
    """Clip the bounds to 0 ≤ lower ≤ upper: rounding can cross them once the gap is closed."""
    upper = max(best.upper, 0.0)
    return replace(best, lower=min(max(best.lower, 0.0), upper), upper=upper)
