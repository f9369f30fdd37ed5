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
        "`redhost new-expert --ranks 2,4,8,16,32` trains an expert whose first r units are an "
        "expert by themselves; `redhost recompose --rank ID=r` serves them. Every cell is a "
        "composition of packages, routed, on rows that nobody learnt from, with 95 % by bootstrap "
        "over rows that belong together; accuracies are means over seeds. Beside the nested "
        "package stand a package trained for each rank, and one of the largest rank that was never "
        "trained to be cut: in the order its units came in, and with those of the largest "
        "‖U_j‖ ‖V_j‖ first.",
        "",
        "![Accuracy over rank: one line for each way to have an expert of that rank](ranks.svg)",
        "",
    ]
    for name in (s for s in SUBJECTS if s in metrics):
        lines += _subject(metrics[name])
    return "\n".join(lines)


def _subject(found: Mapping[str, Any]) -> list[str]:
    head = [
        "rank",
        *METHODS.values(),
        "the first less the second, points",
        "bytes",
        "time of Δ",
    ]
    without = found["without"]
    lines = [
        f"## {found['title'][0].upper()}{found['title'][1:]}",
        "",
        f"{found['rows']:,} rows, {_counted(found['seeds'])}, router `{found['router']}`. "
        f"Without any: {without['name']}, {_accuracy(without)}.",
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
        "Bytes are those of all experts' weights in a host's memory. Time is that of every "
        "expert's Δ over 256 rows, of that at the largest rank, medians of 25 passes in turns. To "
        f"train the nested packages took {seconds['nested'] / last:.1f} × what those of the "
        f"largest rank take, the packages for each rank together {apart / last:.1f} ×.",
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
