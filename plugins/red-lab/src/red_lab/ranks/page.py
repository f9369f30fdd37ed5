"""Write the metrics of `redhost lab ranks` as a page and its figure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from red_lab.ranks.measure import METHODS, RANKS

__all__ = ["draw", "page"]

SUBJECTS = ("ranges", "newswire")


def page(metrics: Mapping[str, Any]) -> str:
    """Return the page for metrics of the schema ``red-lab.ranks/1``."""
    lines = [
        "# One package at several ranks",
        "",
        "Written by `redhost lab ranks` from `metrics.json`; do not edit.",
        "",
        "`redhost new-expert --ranks 2,4,8,16,32` trains a nested expert: its first r units are a "
        "complete expert of rank r, and `redhost recompose --rank ID=r` serves only these. Every "
        "cell is the accuracy of a routed composition of packages on held-out rows, the mean over "
        "random seeds, with a 95 % interval by bootstrap over groups of related rows. The nested "
        "package is compared with a package trained for each rank, and with a package of the "
        "largest rank that was not trained to be truncated. The latter is truncated in its "
        "original order of units, and with the units of the largest ‖U_j‖ ‖V_j‖ first.",
        "",
        "![Accuracy by rank: one line for each way to obtain an expert of that rank](ranks.svg)",
        "",
    ]
    for name in (s for s in SUBJECTS if s in metrics):
        lines += _subject(metrics[name])
    return "\n".join(lines)


def _subject(found: Mapping[str, Any]) -> list[str]:
    head = [
        "rank",
        *METHODS.values(),
        "first minus second, points",
        "bytes",
        "time of Δ, relative",
    ]
    without = found["without"]
    lines = [
        f"## {found['title'][0].upper()}{found['title'][1:]}",
        "",
        f"{found['rows']:,} rows, {_counted(found['seeds'])}, router `{found['router']}`. "
        f"Without such experts: {without['name']}, {_accuracy(without)}.",
        "",
        f"| {' | '.join(head)} |",
        "|---" * len(head) + "|",
    ]
    for rank in map(str, RANKS):
        difference, pays = found["less apart"][rank], found["pays"][rank]
        cells = [
            rank,
            *(_accuracy(found["routed"][m][rank]) for m in METHODS),
            f"{100 * difference['mean']:+.1f} ({100 * difference['low']:+.1f} … "
            f"{100 * difference['high']:+.1f})",
            f"{pays['bytes']:,}",
            f"{pays['time']:.2f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    seconds = found["seconds"]
    apart = sum(seconds[f"rank{rank}"] for rank in RANKS)
    last = seconds[f"rank{RANKS[-1]}"]
    return [
        *lines,
        "",
        "*First minus second* is the paired difference of the first two accuracies. Bytes are the "
        "size of all experts' weights in a host's memory. Time is that of computing every expert's "
        "Δ on 256 rows, divided by the time at the largest rank (medians of 25 alternating "
        f"passes). Training the nested packages took {seconds['nested'] / last:.1f} times as long "
        "as training the packages of the largest rank; the packages for each rank together took "
        f"{apart / last:.1f} times as long.",
        "",
    ]


def _counted(seeds: int) -> str:
    return "1 seed" if seeds == 1 else f"{seeds} seeds"


def _accuracy(cell: Mapping[str, float]) -> str:
    return f"{cell['mean']:.3f} ({cell['low']:.3f}–{cell['high']:.3f})"


def draw(metrics: Mapping[str, Any], folder: Path) -> None:
    """Write ranks.svg; the same metrics give the same bytes."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    shown = [s for s in SUBJECTS if s in metrics]
    with mpl.rc_context({"svg.hashsalt": "ranks", "figure.figsize": (8, 3.2), "font.size": 9}):
        figure, axes = plt.subplots(1, len(shown), layout="constrained", squeeze=False)
        for place, name in zip(axes[0], shown, strict=True):
            found = metrics[name]
            for method, title in METHODS.items():
                means = [found["routed"][method][str(r)]["mean"] for r in RANKS]
                style = "-" if method in {"nested", "apart"} else "--"
                place.plot(RANKS, means, style, marker=".", label=title)
            place.axhline(found["without"]["mean"], color="grey", linewidth=0.8, linestyle=":")
            place.set_xscale("log", base=2)
            place.set_xticks(RANKS, list(map(str, RANKS)))
            place.set_xlabel("rank")
            place.set_title(name)
        axes[0][0].set_ylabel("accuracy")
        axes[0][-1].legend(loc="lower right", fontsize=7)
        figure.savefig(folder / "ranks.svg", metadata={"Date": None})
        plt.close(figure)
