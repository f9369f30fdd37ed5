"""Run the campaign and summarise its results."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from red_lab.progress import Bar

import redhost
from mutants.generate import kinds, mutants
from mutants.judge import MEMORY, SECONDS, Result, judge_all
from mutants.limits import HEADER_SECONDS, RUNS, measure_limits

__all__ = ["campaign", "summary"]

OUTCOMES = ("refused", "refused by digest", "same", "crash", "hang", "memory")


def campaign(*, count: int, seed: int) -> dict[str, Any]:
    """Check mutants and expensive files; return metrics of the schema ``red-lab.mutants/1``.

    Args:
        count: Number of mutants.
        seed: Random seed.
    """
    bar, results = Bar("mutants", total=count), []
    for result in judge_all(mutants(count, seed=seed)):
        results.append(result)
        bar.update(len(results), note=f"{sum(r.bad for r in results)} bad")
    return {
        "schema": "red-lab.mutants/1",
        "redhost": redhost.__version__,
        "python": platform.python_version(),
        "count": count,
        "seed": seed,
        "kinds": len(kinds()),
        **summary(results),
        "limits": _limits(measure_limits()),
    }


def summary(results: Sequence[Result]) -> dict[str, Any]:
    """Return a campaign's figures: outcomes in total and by target, maxima, and reasons."""
    targets = sorted({r.target for r in results})
    seconds = sorted(r.seconds for r in results)
    return {
        "outcomes": _count(results),
        "targets": {t: _count([r for r in results if r.target == t]) for t in targets},
        "codes": dict(sorted(Counter(r.why for r in results if r.why and not r.bad).items())),
        "kinds_judged": len({(r.target, r.kind) for r in results}),
        "seconds": {
            "limit": SECONDS,
            "median": seconds[len(seconds) // 2],
            "p99": seconds[int(0.99 * (len(seconds) - 1))],
            "most": seconds[-1],
        },
        "memory": {
            "limit_beyond_size": MEMORY,
            "most": max((r.memory for r in results if r.memory is not None), default=None),
        },
        "bad": [asdict(r) for r in results if r.bad],
    }


def _count(results: Iterable[Result]) -> dict[str, int]:
    found = Counter(str(r.outcome) for r in results)
    return {name: found[name] for name in OUTCOMES}


def _limits(measured: Iterable[tuple[Result, float]]) -> dict[str, Any]:
    rows: list[Mapping[str, Any]] = []
    for result, limit in measured:
        rows.append(
            {
                "file": result.kind,
                "bytes": result.size,
                "outcome": result.outcome,
                "code": result.why,
                "seconds": result.seconds,
                "limit": limit,
                "memory": result.memory,
                "kept": result.outcome == "refused" and result.seconds <= limit,
            }
        )
    return {"header_seconds": HEADER_SECONDS, "runs": RUNS, "files": rows}
