"""The certificate that every exact solver keeps, and when to stop closing it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from .probability import Array

__all__ = ["Bounds", "best_of", "until_closed"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Bounds:
    """Two numbers with the value of a game between them, and the moves that prove them.

    Attributes:
        lower: What nature can force, nats.
        upper: What the host can hold nature to, nats.
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
    """Return the largest lower and the smallest upper bound, each with its own proof."""
    every = list(bounds)
    low, high = max(every, key=lambda b: b.lower), min(every, key=lambda b: b.upper)
    return Bounds(lower=low.lower, upper=high.upper, lam=low.lam, host=high.host)


def until_closed(
    steps: Iterator[Bounds], *, tol: float, most: int, patience: int | None = None
) -> tuple[Bounds, int]:
    """Follow bounds that only get better; return the last ones and the number of steps.

    Args:
        steps: Bounds for ever.
        tol: Where to stop: the gap, nats.
        most: Steps at most, at least 1.
        patience: Give up once the gap has not halved in so many steps; None to go on.
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
    """Return the bounds with 0 ≤ lower ≤ upper: solved to the last bit, rounding can cross them."""
    upper = max(best.upper, 0.0)
    return replace(best, lower=min(max(best.lower, 0.0), upper), upper=upper)
