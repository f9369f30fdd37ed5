"""Time systems in turns, so that a noisy machine is noisy for all of them.

The standard library alone: the python of another environment uses this too.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter

__all__ = ["in_turns", "overhead", "peak_bytes", "seconds_of", "share", "spread"]


def in_turns(systems: Mapping[str, Callable[[], object]], *, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of every system in every round.

    Each round starts with another system, so that none is always the one whose weights were just
    pushed out of the caches. One round more, the first, warms up and is not counted.

    Args:
        systems: What to time, by name.
        rounds: How many rounds count.
    """
    names = list(systems)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for n in range(rounds + 1):
        first = n % len(names)
        for name in (*names[first:], *names[:first]):
            took = seconds_of(systems[name])
            if n:
                seconds[name].append(took)
    return seconds


def seconds_of(work: Callable[[], object]) -> float:
    """Return how long one call takes."""
    start = perf_counter()
    work()
    return perf_counter() - start


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return the median and the quartiles."""
    if len(values) == 1:
        return dict.fromkeys(("median", "low", "high"), values[0])
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": middle, "low": low, "high": high}


def share(part: Sequence[float], whole: Sequence[float]) -> dict[str, float]:
    """Return part of whole: the ratio of medians, and the quartiles of each round's ratio."""
    each = spread([p / w for p, w in zip(part, whole, strict=True)])
    ratio = statistics.median(part) / statistics.median(whole)
    return {"ratio": ratio, "low": each["low"], "high": each["high"]}


def overhead(system: Sequence[float], floor: Sequence[float]) -> dict[str, float]:
    """Return what a system takes beyond the floor, as a share of the floor."""
    return {name: value - 1 for name, value in share(system, floor).items()}


def peak_bytes() -> int | None:
    """Return the most memory this process had resident so far; None where nobody tells."""
    if sys.platform == "win32":
        return None
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most
