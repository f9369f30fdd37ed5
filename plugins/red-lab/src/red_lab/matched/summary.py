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
            }
            for n in names
        },
        "paired": {
            f"{RED} - {n}": mean_within(hits[RED] - hits[n], clusters) for n in names if n != RED
        },
        "routed": {k: float(np.mean([m[k] for m in measured])) for k in ("gate", "listening")},
        "stored": measured[0]["stored"],
    }


def draw(metrics: Mapping[str, Any], folder: Path) -> None:
    """Draw accuracy and worst domain, a column for each data set."""
    tasks = metrics["tasks"]
    size: dict[str, Any] = {"figsize": (8, 3), "ncols": len(tasks), "sharey": True}
    with drawing(folder / "systems.svg", salt="matched", **size) as [columns]:
        for axes, (task, results) in zip(columns, tasks.items(), strict=True):
            systems = list(results["systems"].values())
            places, accuracies = range(len(systems)), [s["accuracy"] for s in systems]
            error = [[abs(a[end] - a["mean"]) for a in accuracies] for end in ("low", "high")]
            means = [a["mean"] for a in accuracies]
            axes.errorbar(places, means, yerr=error, fmt="o", capsize=3, label="all rows")
            worst = [min(s["domains"].values()) for s in systems]
            axes.plot(places, worst, "v", markersize=5, label="worst domain")
            axes.set_title(task)
            axes.set_xticks(places, list(results["systems"]), rotation=25, ha="right")
        columns[0].set_ylabel("accuracy")
        columns[0].legend()
