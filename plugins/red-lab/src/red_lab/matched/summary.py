"""Summarise single seeds: means, intervals by cluster, paired differences; and draw them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from red_lab.intervals import mean_known, mean_within
from red_lab.matched.measure import RED
from red_lab.metrics import drawing

__all__ = ["draw", "summarise"]


def summarise(measured: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the metrics of one data set over its seeds."""
    clusters = [c for m in measured for c in m["clusters"]]
    domains = np.array([d for m in measured for d in m["domains"]])
    names = list(measured[0]["systems"])
    own = {n: [m["systems"][n] for m in measured] for n in names}
    hits = {n: np.array([x for t in own[n] for x in t["hits"]]) for n in names}
    return {
        "seeds": len(measured),
        "rows": len(clusters),
        "clusters": len(set(clusters)),
        "shape": {k: [m["shape"][k] for m in measured] for k in measured[0]["shape"]},
        "systems": {
            n: {
                "accuracy": mean_within(hits[n], clusters),
                "domains": {
                    d: float(hits[n][domains == d].mean()) for d in sorted(set(domains.tolist()))
                },
                "train": float(np.mean([t["train"] for t in own[n]])),
                "parameters": own[n][0]["parameters"],
                "multiply_adds": own[n][0]["multiply_adds"],
                "seconds": float(np.median([t["seconds"] for t in own[n]])),
                "usage_entropy": mean_known([t["usage_entropy"] for t in own[n]]),
                "eigenvalue": _top([t["eigenvalues"] for t in own[n]]),
            }
            for n in names
        },
        "paired": {
            f"{RED} - {n}": mean_within(hits[RED] - hits[n], clusters) for n in names if n != RED
        },
        "composed": _top([[m["composed"]] for m in measured]),
        "routed": {k: float(np.mean([m[k] for m in measured])) for k in ("gate", "listening")},
        "stored": measured[0]["stored"],
    }


def _top(seeds: Sequence[Sequence[Mapping[str, float]]]) -> dict[str, float]:
    """Return the largest eigenvalue of each seed's blocks: median, minimum, maximum over seeds."""
    values = [max(block["value"] for block in blocks) for blocks in seeds]
    every = [block for blocks in seeds for block in blocks]
    return {
        "median": float(np.median(values)),
        "min": min(values),
        "max": max(values),
        "residual": max(block["residual"] for block in every),
        "products": max(block["products"] for block in every),
    }


def draw(metrics: Mapping[str, Any], folder: Path) -> None:
    """Draw accuracy, worst domain and top eigenvalue, a column for each data set."""
    tasks = metrics["tasks"]
    size: dict[str, Any] = {"figsize": (8, 4.5), "nrows": 2, "ncols": len(tasks)}
    with drawing(folder / "systems.svg", salt="matched", sharex=True, sharey="row", **size) as axes:
        for top, bottom, (task, results) in zip(*axes, tasks.items(), strict=True):
            systems = list(results["systems"].values())
            places = range(len(systems))
            pairs = [(s["accuracy"], s["eigenvalue"]) for s in systems]
            _points(top, [(a["mean"], a["low"], a["high"]) for a, _ in pairs], "all rows")
            worst = [min(s["domains"].values()) for s in systems]
            top.plot(places, worst, "v", markersize=5, label="worst domain")
            top.set_title(task)
            _points(bottom, [(e["median"], e["min"], e["max"]) for _, e in pairs], "seeds")
            bottom.set_yscale("log")
            bottom.set_xticks(places, list(results["systems"]), rotation=25, ha="right")
        axes[0][0].set_ylabel("accuracy")
        axes[1][0].set_ylabel("top eigenvalue")
        axes[0][0].legend()


def _points(axes: Any, intervals: Sequence[tuple[float, float, float]], label: str) -> None:
    """Draw one point a system, (middle, low, high)."""
    middle = [m for m, _, _ in intervals]
    error = [[m - low for m, low, _ in intervals], [high - m for m, _, high in intervals]]
    axes.errorbar(range(len(middle)), middle, yerr=error, fmt="o", capsize=3, label=label)
