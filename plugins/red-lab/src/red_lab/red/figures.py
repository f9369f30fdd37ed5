"""Draw what `redhost lab red` measured: ranges, routes, and accuracy against routing errors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from red_lab.red.experts import NAMES
from red_lab.red.measure import SHARES
from red_lab.red.summary import titled

__all__ = ["draw"]

BARS = ("global head", "monolith", "MoE, linear", "MoE, residual", "RED")


def draw(metrics: Mapping[str, Any], folder: Path) -> None:
    """Write ranges.svg, noise.svg and routing.svg; the same metrics give the same bytes."""
    import matplotlib as mpl

    mpl.use("Agg")
    with mpl.rc_context({"svg.hashsalt": "red", "figure.figsize": (7, 3.5), "font.size": 9}):
        _ranges(metrics, folder / "ranges.svg")
        _noise(metrics, folder / "noise.svg")
        _routing(metrics, folder / "routing.svg")
        if "ablations" in metrics:
            _lines(
                {
                    "trained at its rank": _red(metrics["ablations"]["rank"]),
                    "cut from one training": _red(metrics["ablations"]["nested"]),
                },
                "rank of every expert",
                folder / "ranks.svg",
            )
        if "shares" in metrics:
            systems = next(iter(metrics["shares"].values()))
            means = {
                s: {k: row[s]["mean"] for k, row in metrics["shares"].items()} for s in systems
            }
            _lines(means, "share of the questions that the base saw", folder / "shares.svg")


def _ranges(metrics: Mapping[str, Any], path: Path) -> None:
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(layout="constrained")
    width = 0.8 / len(BARS)
    for n, name in enumerate(BARS):
        system = titled(metrics["systems"])[name]
        heights = [system["domains"][d] or 0.0 for d in NAMES] + [system["accuracy"]["mean"]]
        places = [k + n * width for k in range(len(heights))]
        error = [[0.0] * len(heights), [0.0] * len(heights)]
        a = system["accuracy"]
        error[0][-1], error[1][-1] = a["mean"] - a["low"], a["high"] - a["mean"]
        axes.bar(places, heights, width, label=name, yerr=error, error_kw={"linewidth": 0.8})
    axes.set_xticks([k + 0.4 - width / 2 for k in range(len(NAMES) + 1)], [*NAMES, "all"])
    axes.set_ylim(0, 1.02)
    axes.set_ylabel("exact answers")
    axes.legend(ncols=3, loc="lower right")
    _save(figure, path)


def _noise(metrics: Mapping[str, Any], path: Path) -> None:
    from matplotlib import pyplot as plt

    figure, both = plt.subplots(1, 2, sharey=True, layout="constrained")
    titles = {"flipped": "routes flipped at random", "worst": "mass moved by an adversary"}
    for axes, (kind, title) in zip(both, titles.items(), strict=True):
        for name, values in metrics["curves"][kind].items():
            style = "--" if name.startswith("MoE") else "-"
            axes.plot(SHARES, values, style, marker=".", label=name)
        axes.set_title(title)
        axes.set_xlabel("q")
        axes.set_ylim(0, 1.02)
    both[0].set_ylabel("exact answers")
    both[0].legend(loc="lower left")
    _save(figure, path)


def _routing(metrics: Mapping[str, Any], path: Path) -> None:
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(4, 3.5), layout="constrained")
    image = axes.imshow(metrics["confusion"], vmin=0, vmax=1, cmap="viridis")
    axes.set_xticks(range(len(NAMES)), NAMES, rotation=45)
    axes.set_yticks(range(len(NAMES)), NAMES)
    axes.set_xlabel("mean α of")
    axes.set_ylabel("questions of")
    figure.colorbar(image)
    _save(figure, path)


def _red(table: Mapping[str, Any]) -> dict[str, float]:
    return {setting: row["RED"]["mean"] for setting, row in table.items()}


def _lines(curves: Mapping[str, Mapping[str, float]], what: str, path: Path) -> None:
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(5, 3.5), layout="constrained")
    for name, values in curves.items():
        axes.plot(list(values), list(values.values()), marker=".", label=name)
    axes.set_xlabel(what)
    axes.set_ylabel("exact answers")
    axes.legend()
    _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    from matplotlib import pyplot as plt

    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
