"""Draw worst regrets of every router, the curves over rows and size, and the solver's time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["ROUTERS", "draw"]

ROUTERS = (
    "average",
    "balanced",
    "robust",
    "robust, MLP",
    "distilled, linear, game again",
    "distilled, centroid, game again",
)


def draw(metrics: Mapping[str, Any], folder: Path) -> None:
    """Write the figures; the same metrics give the same bytes."""
    import matplotlib as mpl

    mpl.use("Agg")
    tasks = metrics["tasks"]
    played = {name: results for name, results in tasks.items() if name != "finite"}
    with mpl.rc_context({"svg.hashsalt": "robust", "figure.figsize": (8, 4), "font.size": 9}):
        if played:
            _regrets(played, folder / "regret.svg")
            _growth(played, folder / "growth.svg")
        if "finite" in tasks:
            _curve(tasks["finite"]["curve"], folder / "curve.svg")


def _regrets(tasks: Mapping[str, Any], path: Path) -> None:
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, len(tasks), squeeze=False, layout="constrained")
    for ax, (task, results) in zip(axes[0], tasks.items(), strict=True):
        for shift, (scene, one) in zip((-0.12, 0.12), results["scenes"].items(), strict=True):
            values = [one["systems"][n]["worst_regret"] for n in ROUTERS]
            places = [k + shift for k in range(len(ROUTERS))]
            _points(ax, places, values, f"uneven {scene}")
        ax.set_yscale("log")
        ax.set_title(task)
        ax.set_xticks(range(len(ROUTERS)), ROUTERS, rotation=30, ha="right")
    axes[0][0].set_ylabel("worst domain's regret, nats")
    axes[0][0].legend()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def _growth(tasks: Mapping[str, Any], path: Path) -> None:
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, layout="constrained", sharey=True)
    for task, results in tasks.items():
        for part, line in (("test", "-"), ("train", ":")):
            rows, units = results["growth"]["rows"], results["growth"]["units"]
            label = f"{task}, {part} rows"
            axes[0].plot([p["rows"] for p in rows], _means(rows, part), line, label=label)
            axes[1].plot(range(len(units)), _means(units, part), line, label=label)
    axes[0].set_xscale("log")
    axes[0].set_xlabel("rows of each domain, linear gate")
    names = ["linear" if not p["units"] else str(p["units"]) for p in units]
    axes[1].set_xticks(range(len(names)), names)
    axes[1].set_xlabel("hidden units, 100 rows of each domain")
    axes[0].set_ylabel("worst domain's regret, nats")
    axes[0].legend()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def _curve(points: Sequence[Mapping[str, Any]], path: Path) -> None:
    from matplotlib import pyplot as plt

    figure, ax = plt.subplots(layout="constrained")
    for symbols in sorted({p["symbols"] for p in points}):
        own = [p for p in points if p["symbols"] == symbols]
        label = f"|X| = {symbols:,}"
        ax.plot([p["domains"] for p in own], [p["seconds"] for p in own], "o-", label=label)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xlabel("domains K")
    ax.set_ylabel("seconds to a gap of 1e-8 nats")
    ax.legend()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def _means(points: Sequence[Mapping[str, Any]], part: str) -> list[float]:
    return [p[part]["mean"] for p in points]


def _points(
    ax: Any, places: Sequence[float], intervals: Sequence[Mapping[str, float]], label: str
) -> None:
    middle = [t["mean"] for t in intervals]
    error = [[m - max(t["low"], 1e-3) for m, t in zip(middle, intervals, strict=True)],
             [t["high"] - m for m, t in zip(middle, intervals, strict=True)]]  # fmt: skip
    ax.errorbar(places, middle, yerr=error, fmt="o", capsize=3, label=label)
