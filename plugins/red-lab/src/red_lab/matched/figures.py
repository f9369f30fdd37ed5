"""Draw accuracy, worst domain and top eigenvalue of every system, a column for each data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["draw"]


def draw(metrics: Mapping[str, Any], folder: Path) -> None:
    """Write systems.svg; the same metrics give the same bytes."""
    import matplotlib as mpl

    mpl.use("Agg")
    with mpl.rc_context({"svg.hashsalt": "matched", "figure.figsize": (8, 4.5), "font.size": 9}):
        _systems(metrics["tasks"], folder / "systems.svg")


def _systems(tasks: Mapping[str, Any], path: Path) -> None:
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(
        2, len(tasks), sharey="row", squeeze=False, sharex=True, layout="constrained"
    )
    for column, (task, results) in enumerate(tasks.items()):
        names = list(results["systems"])
        systems = [results["systems"][n] for n in names]
        top, bottom = axes[0][column], axes[1][column]
        pairs = [(s["accuracy"], s["eigenvalue"]) for s in systems]
        _points(top, [(a["mean"], a["low"], a["high"]) for a, _ in pairs], "all rows")
        worst = [min(s["domains"].values()) for s in systems]
        top.plot(range(len(names)), worst, "v", markersize=5, label="worst domain")
        top.set_title(task)
        _points(bottom, [(e["median"], e["min"], e["max"]) for _, e in pairs], "seeds")
        bottom.set_yscale("log")
        bottom.set_xticks(range(len(names)), names, rotation=25, ha="right")
    axes[0][0].set_ylabel("accuracy")
    axes[1][0].set_ylabel("top eigenvalue")
    axes[0][0].legend()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def _points(axes: Any, intervals: Sequence[tuple[float, float, float]], label: str) -> None:
    """Draw one point a system, (middle, low, high)."""
    error = [[m - low for m, low, _ in intervals], [high - m for m, _, high in intervals]]
    axes.errorbar(
        range(len(intervals)),
        [m for m, _, _ in intervals],
        yerr=error,
        fmt="o",
        capsize=3,
        label=label,
    )
