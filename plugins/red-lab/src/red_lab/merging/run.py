"""`redhost lab merging`: sections seed by seed, then metrics, page and figure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from red_lab.intervals import Array, interval
from red_lab.merging.adapters import adapters
from red_lab.merging.folded import folded
from red_lab.merging.page import draw, page
from red_lab.merging.subjects import SUBJECTS, Subject
from red_lab.metrics import cached_json, read_metrics, write_results
from red_lab.progress import Bar
from red_lab.toy.data import one_thread

__all__ = ["run", "summary"]

SCHEMA = "red-lab.merging/1"

Measure = Callable[..., dict[str, Any]]

SECTIONS: Mapping[str, tuple[str, Measure]] = {
    "ranges": ("ranges", folded),
    "newswire": ("newswire", folded),
    "adapters": ("ranges", adapters),
}
"""Name → the subject, and the function that measures it."""


def run(names: Sequence[str], *, seeds: int, out: Path, work: Path) -> Path:
    """Measure sections, merge their metrics with those of other sections, and write the page.

    Args:
        names: Names of the sections.
        seeds: How many times everything is trained.
        out: Folder of the results.
        work: Folder of packages, features and finished seeds.

    Returns:
        The path of metrics.json.
    """
    work.mkdir(parents=True, exist_ok=True)
    metrics: dict[str, Any] = {"schema": SCHEMA} | read_metrics(out)
    for name in names:
        on, measure = SECTIONS[name]
        subject, bar, found = SUBJECTS[on](work), Bar(f"merging, {name}", total=seeds), []
        for seed in range(seeds):
            with one_thread():
                make = partial(measure, subject, seed=seed, work=work)
                found.append(cached_json(work / f"{name}-{seed}.json", make))
            bar.update(seed + 1)
        metrics[name] = summary(subject, found)
        write_results(metrics, out, page=page, draw=draw)
    return out / "metrics.json"


def summary(subject: Subject, found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a section's metrics over seeds, with intervals by cluster.

    Args:
        subject: The data of the section.
        found: The results of each seed.
    """
    hits: dict[str, Array] = {
        name: np.array([f["hits"][name] for f in found], dtype=np.float64).mean(0)
        for name in found[0]["hits"]
    }

    def shown(values: Array) -> dict[str, float]:
        low, high = interval(values, subject.clusters)
        return {"mean": float(values.mean()), "low": low, "high": high}

    flat = found[0].get("flat", {})
    return {
        "title": subject.title,
        "rows": len(subject.test),
        "seeds": len(found),
        "router": found[0].get("router", subject.router),
        "accuracy": {name: shown(values) for name, values in hits.items()},
        "less routed": {n: shown(values - hits["routed"]) for n, values in hits.items()},
        "numbers": found[0]["sizes"],
        "flat": {
            rho: {step: float(np.mean([f["flat"][rho][step] for f in found])) for step in steps}
            for rho, steps in flat.items()
        },
    }
