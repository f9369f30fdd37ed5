"""The page of `redhost lab generative`, and its figure: the share recovered by domain."""

from __future__ import annotations

from pathlib import Path

from red_lab.metrics import Metrics
from red_lab.rendering import render

__all__ = ["draw", "page"]

DRAWN = (
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


def page(metrics: Metrics) -> str:
    """Return the page for metrics of the schema ``red-lab.generative/2``."""
    return render("generative", metrics)


def draw(metrics: Metrics, folder: Path) -> None:
    """Write the figure; the same metrics give the same bytes."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    names = [n for n in DRAWN if n in metrics["systems"]]
    with mpl.rc_context({"svg.hashsalt": "generative", "figure.figsize": (8, 4), "font.size": 9}):
        figure, ax = plt.subplots(layout="constrained")
        for k, domain in enumerate(metrics["domains"]):
            shares = [metrics["systems"][n]["recovered"][domain] for n in names]
            places = [i + 0.12 * (k - (len(metrics["domains"]) - 1) / 2) for i in range(len(names))]
            middle = [s["mean"] for s in shares]
            error = [
                [s["mean"] - s["low"] for s in shares],
                [s["high"] - s["mean"] for s in shares],
            ]
            ax.errorbar(places, middle, yerr=error, fmt="o", markersize=3, capsize=2, label=domain)
        ax.axhline(0.9, color="grey", linewidth=0.8)
        ax.set_xticks(range(len(names)), names, rotation=30, ha="right")
        ax.set_ylabel("share of the own expert's gain")
        ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
        figure.savefig(folder / "recovered.svg", metadata={"Date": None})
        plt.close(figure)
