"""Time systems in turns, so that machine noise affects all of them alike.

Only the standard library is used: the Python of another environment imports this too.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TypeVar

__all__ = [
    "in_pairs",
    "in_turns",
    "in_turns_over",
    "overhead",
    "peak_bytes",
    "percentile",
    "seconds_of",
    "share",
    "spread",
    "times",
]

Work = TypeVar("Work")


def in_turns(systems: Mapping[str, Callable[[], object]], *, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of every system in every round.

    Each round starts with another system, so that cache eviction by the previous system does not
    always affect the same one. An additional first round warms up and is not counted.

    Args:
        systems: The systems to time, by name.
        rounds: Number of counted rounds.
    """
    each = {name: partial(_without_work, system) for name, system in systems.items()}
    return in_turns_over(each, [None] * (rounds + 1))


def in_turns_over(
    systems: Mapping[str, Callable[[Work], object]], works: Sequence[Work]
) -> dict[str, list[float]]:
    """Return the seconds of every system on all pieces of work but the first, which warms up.

    Args:
        systems: The systems to time, by name; each round starts with another.
        works: The work of each round, the same for all systems.
    """
    names = list(systems)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for n, work in enumerate(works):
        first = n % len(names)
        for name in (*names[first:], *names[:first]):
            took = seconds_of(partial(systems[name], work))
            if n:
                seconds[name].append(took)
    return seconds


def _without_work(system: Callable[[], object], _: None) -> object:
    return system()


def in_pairs(
    floor: Callable[[], object], systems: Mapping[str, Callable[[], object]], *, rounds: int
) -> dict[str, tuple[list[float], list[float]]]:
    """Return the seconds of every system, and those of the floor directly before it.

    The first round warms up and is not counted.

    Args:
        floor: The reference of the comparison.
        systems: The systems to time, by name.
        rounds: Number of counted rounds.
    """
    seconds: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in systems}
    for n in range(rounds + 1):
        for name, work in systems.items():
            before, took = seconds_of(floor), seconds_of(work)
            if n:
                seconds[name][0].append(before)
                seconds[name][1].append(took)
    return seconds


def seconds_of(work: Callable[[], object]) -> float:
    """Return the seconds of one call."""
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
    """Return part over whole: the ratio of medians, and the quartiles of the rounds' ratios."""
    each = spread([p / w for p, w in zip(part, whole, strict=True)])
    ratio = statistics.median(part) / statistics.median(whole)
    return {"ratio": ratio, "low": each["low"], "high": each["high"]}


def overhead(system: Sequence[float], floor: Sequence[float]) -> dict[str, float]:
    """Return a system's additional time over the floor, as a fraction of the floor.

    These are the median and quartiles of the pairs' own ratios: a busy machine slows two
    consecutive long passes alike.
    """
    return {name: value - 1 for name, value in times(system, floor).items()}


def times(system: Sequence[float], floor: Sequence[float]) -> dict[str, float]:
    """Return system over floor: median and quartiles of the pairs' own ratios."""
    each = spread([s / f for s, f in zip(system, floor, strict=True)])
    return {"ratio": each["median"], "low": each["low"], "high": each["high"]}


def percentile(values: Sequence[float], percent: int) -> float:
    """Return the smallest value that `percent` % of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


def peak_bytes() -> int | None:
    """Return the peak resident memory of this process; None if the system does not report it.

    `getrusage` is not used: on Linux its value includes the parent's memory at the start.
    """
    try:
        status = Path("/proc/self/status").read_text("ascii")
    except OSError:
        return None
    found = re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
    return 1024 * int(found[1]) if found else None
