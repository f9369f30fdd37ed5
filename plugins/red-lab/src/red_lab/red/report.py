"""Write the metrics of `redhost lab red` as a page with figures, and the overview of all runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from red_lab.metrics import Metrics, drawing, read_metrics, render, write_json
from red_lab.red.experts import NAMES
from red_lab.red.measure import SHARES
from red_lab.red.queries import RULE
from red_lab.red.summary import earlier_rule, key_of, titled

__all__ = ["draw", "overview", "page", "write_overview"]

PLACE = 0.3
"""The share of wrong routes at which systems are compared in words."""

ABLATIONS = {
    "rank": "Rank of every expert; experts are trained separately for each rank",
    "recipe": "Training recipe of experts and router",
    "noise": "A router trained with noise of variance p · abs(z); noisy z has p = 0.5",
}


def page(metrics: Metrics) -> str:
    """Return the page for metrics of the schema ``red-lab.red/2``."""
    return render(
        "red",
        metrics,
        earlier=earlier_rule(metrics),
        rule=RULE,
        ranges=NAMES,
        flips=SHARES,
        place=PLACE,
        titles=ABLATIONS,
    )


SYSTEMS = ("global head", "MoE, linear", "MoE, mlp", "MoE, residual", "RED", "monolith")


def write_overview(folder: Path) -> None:
    """Write overview.json and README.md for all runs under a folder."""
    found = overview(folder)
    write_json(found, folder / "overview.json", sort_keys=False)
    (folder / "README.md").write_text(render("red-overview", found, systems=SYSTEMS), "utf-8")


def overview(folder: Path) -> dict[str, Any]:
    """Return the main figures of every run under a folder."""
    found = {p.parent.name: read_metrics(p.parent) for p in sorted(folder.glob("*/metrics.json"))}
    runs = [
        {
            "name": name,
            "task": metrics["plan"]["task"] + ", stratified" * metrics["plan"]["stratified"],
            "protocol": metrics["plan"]["protocol"],
            "backbone": metrics["plan"]["backbone"],
            "base": metrics["plan"]["recipe"],
            "seeds": metrics["plan"]["seeds"],
            "rows": metrics["rows"],
            "seen": metrics["seen"],
            "earlier_rule": earlier_rule(metrics),
            "systems": {s: metrics["systems"][key_of(s)]["accuracy"] for s in SYSTEMS},
        }
        for name, metrics in found.items()
    ]
    return {"schema": "red-lab.red-overview/1", "runs": runs}


BARS = ("global head", "monolith", "MoE, linear", "MoE, residual", "RED")


def draw(metrics: Mapping[str, Any], folder: Path) -> None:
    """Write ranges.svg, noise.svg and routing.svg; the same metrics give the same bytes."""
    red = partial(drawing, salt="red")
    with red(folder / "ranges.svg", figsize=(7, 3.5)) as axes:
        _ranges(axes[0][0], titled(metrics["systems"]))
    with red(folder / "noise.svg", figsize=(7, 3.5), ncols=2, sharey=True) as axes:
        _noise(axes[0], metrics["curves"])
    with red(folder / "routing.svg", figsize=(4, 3.5)) as axes:
        _routing(axes[0][0], metrics["confusion"])
    curves = {}
    if "ablations" in metrics:
        curves["ranks.svg", "rank of every expert"] = {
            "RED": {rank: row["RED"]["mean"] for rank, row in metrics["ablations"]["rank"].items()}
        }
    if "shares" in metrics:
        systems = next(iter(metrics["shares"].values()))
        curves["shares.svg", "share of the questions that the base saw"] = {
            s: {k: row[s]["mean"] for k, row in metrics["shares"].items()} for s in systems
        }
    for (file, what), lines in curves.items():
        with red(folder / file, figsize=(5, 3.5)) as axes:
            for name, values in lines.items():
                axes[0][0].plot(list(values), list(values.values()), marker=".", label=name)
            axes[0][0].set(xlabel=what, ylabel="exact answers")
            axes[0][0].legend()


def _ranges(axes: Any, systems: Mapping[str, Mapping[str, Any]]) -> None:
    width = 0.8 / len(BARS)
    for n, name in enumerate(BARS):
        a = systems[name]["accuracy"]
        heights = [systems[name]["domains"][d] or 0.0 for d in NAMES] + [a["mean"]]
        places = [k + n * width for k in range(len(heights))]
        none = [0.0] * len(NAMES)
        error = [[*none, a["mean"] - a["low"]], [*none, a["high"] - a["mean"]]]
        axes.bar(places, heights, width, label=name, yerr=error, error_kw={"linewidth": 0.8})
    axes.set_xticks([k + 0.4 - width / 2 for k in range(len(NAMES) + 1)], [*NAMES, "all"])
    axes.set(ylim=(0, 1.02), ylabel="exact answers")
    axes.legend(ncols=3, loc="lower right")


def _noise(both: Sequence[Any], curves: Mapping[str, Any]) -> None:
    titles = {"flipped": "routes flipped at random", "worst": "mass moved by an adversary"}
    for axes, (kind, title) in zip(both, titles.items(), strict=True):
        for name, values in curves[kind].items():
            style = "--" if name.startswith("MoE") else "-"
            axes.plot(SHARES, values, style, marker=".", label=name)
        axes.set(title=title, xlabel="q", ylim=(0, 1.02))
    both[0].set_ylabel("exact answers")
    both[0].legend(loc="lower left")


def _routing(axes: Any, confusion: Sequence[Sequence[float]]) -> None:
    image = axes.imshow(confusion, vmin=0, vmax=1, cmap="viridis")
    axes.set_xticks(range(len(NAMES)), NAMES, rotation=45)
    axes.set_yticks(range(len(NAMES)), NAMES)
    axes.set(xlabel="mean α of", ylabel="questions of")
    axes.figure.colorbar(image)
