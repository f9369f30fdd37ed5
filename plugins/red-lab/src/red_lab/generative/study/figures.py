"""Draw recovered shares, regrets under rare domains, and weights around a switch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from red_lab.generative.study.switch import AFTER, BEFORE

__all__ = ["SHOWN", "draw"]

SHOWN = (
    "uniform",
    "average",
    "balanced",
    "robust",
    "robust, residual",
    "robust shares",
    "distilled",
    "statistics",
    "bayes",
    "product, residual",
    "monolith, balanced",
    "monolith, regret game",
)


def draw(metrics: Mapping[str, Any], folder: Path) -> None:
    """Write the figures; the same metrics give the same bytes."""
    import matplotlib as mpl

    mpl.use("Agg")
    with mpl.rc_context({"svg.hashsalt": "generative", "figure.figsize": (8, 4), "font.size": 9}):
        _recovered(metrics, folder / "recovered.svg")
        _rarity(metrics["rarity"], folder / "rarity.svg")
        _switch(metrics["switch"]["routers"], folder / "switch.svg")


def _recovered(metrics: Mapping[str, Any], path: Path) -> None:
    from matplotlib import pyplot as plt

    figure, ax = plt.subplots(layout="constrained")
    names = [n for n in SHOWN if n in metrics["systems"]]
    for k, domain in enumerate(metrics["domains"]):
        shares = [metrics["systems"][n]["recovered"][domain] for n in names]
        places = [i + 0.12 * (k - (len(metrics["domains"]) - 1) / 2) for i in range(len(names))]
        _points(ax, places, shares, domain)
    ax.axhline(0.9, color="grey", linewidth=0.8)
    ax.set_xticks(range(len(names)), names, rotation=30, ha="right")
    ax.set_ylabel("share of the own expert's gain")
    ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    _save(figure, path)


def _rarity(scenes: Mapping[str, Any], path: Path) -> None:
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, len(scenes), squeeze=False, sharey=True, layout="constrained")
    titles = {"rare": "rare in weight", "few": "rare in weight and rows"}
    for ax, (scene, rarity) in zip(axes[0], scenes.items(), strict=True):
        turns = rarity["turns"]
        for shift, name in ((-0.1, "average"), (0.1, "robust")):
            places = [k + shift for k in range(len(turns))]
            _points(ax, places, [t[name] for t in turns.values()], name)
        ax.set_title(titles[scene])
        ax.set_xticks(range(len(turns)), list(turns), rotation=30, ha="right")
    axes[0][0].set_ylabel("worst domain's regret, bits per byte")
    axes[0][-1].legend()
    _save(figure, path)


def _switch(routers: Mapping[str, Any], path: Path) -> None:
    from matplotlib import pyplot as plt

    figure, ax = plt.subplots(layout="constrained")
    places = list(range(-BEFORE, AFTER))
    for n, (name, router) in enumerate(routers.items()):
        for key, line in (("new", "-"), ("old", ":")):
            values = [math.nan if x is None else x for x in router[key]]
            label = name if key == "new" else None
            ax.plot(places, values, line, color=f"C{n}", label=label)
    ax.axvline(0, color="grey", linewidth=0.8)
    ax.set_xlabel("tokens read of the second half")
    ax.set_ylabel("weight of its expert (dotted: of the first half's)")
    ax.legend()
    _save(figure, path)


def _points(
    ax: Any, places: Sequence[float], intervals: Sequence[Mapping[str, float]], label: str
) -> None:
    middle = [t["mean"] for t in intervals]
    error = [
        [m - t["low"] for m, t in zip(middle, intervals, strict=True)],
        [t["high"] - m for m, t in zip(middle, intervals, strict=True)],
    ]
    ax.errorbar(places, middle, yerr=error, fmt="o", markersize=3, capsize=2, label=label)


def _save(figure: Any, path: Path) -> None:
    from matplotlib import pyplot as plt

    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
