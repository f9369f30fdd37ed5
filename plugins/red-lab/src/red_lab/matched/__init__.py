"""`redhost lab matched`: four ways to spend the same number of parameters on the same features.

Legend for shapes, here and in every file of `matched`: N rows (B in a batch), D features, E
experts, W hidden units, R rank, C labels, L_i labels of expert i, P trained parameters.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from red_lab.intervals import mean_known, mean_within
from red_lab.metrics import drawing
from red_lab.progress import Bar
from red_lab.study import Cell, Study

if TYPE_CHECKING:
    from red_lab.matched.systems import Recipe, Tick

__all__ = ["EVIDENCE", "RED", "STUDY", "TRAININGS", "draw", "matched", "summarise"]

RED, EVIDENCE = "RED", "RED, evidence router"

TRAININGS = 9
"""Number of trainings in a seed: three systems, five experts and a router."""


def measure_cell(cell: Cell) -> dict[str, Any]:
    """Return the results of one seed of a data set, with the recipe and how it was chosen."""
    from red_lab.matched.data import load
    from red_lab.matched.measure import measure
    from red_lab.training import one_thread

    chosen, choice = recipe(cell)
    problem = load(cell.part, seed=cell.seed, work=cell.work)
    tick = shown(cell.part, f"seed {cell.seed}", chosen.epochs)
    with one_thread():
        measured = measure(problem, recipe=chosen, seed=cell.seed, tick=tick)
    return {**measured, "recipe": asdict(chosen), "choice": choice}


def recipe(cell: Cell) -> tuple[Recipe, dict[str, Any] | None]:
    """Return the training settings and how their epochs were chosen; for arithmetic none were."""
    from red_lab.matched.data import load
    from red_lab.matched.measure import choose
    from red_lab.matched.systems import ARITHMETIC, TEXT

    if cell.part == "arithmetic":
        return ARITHMETIC, None
    choice = choose(
        lambda: load(cell.part, seed=0, work=cell.work),
        recipe=TEXT,
        file=cell.work / "matched" / f"{cell.part}-epochs.json",
        shown=lambda what, epochs: shown(cell.part, what, epochs),
    )
    return replace(TEXT, epochs=choice["epochs"]), choice


def shown(task: str, what: str, epochs: int) -> Tick:
    """Return a progress bar over all epochs of all systems."""
    bar = Bar(f"matched, {task}, {what}", total=TRAININGS * epochs)
    done = itertools.count(1)
    return lambda name: bar.update(next(done), name)


def summarise(_: str, measured: Sequence[Any]) -> dict[str, Any]:
    """Return the metrics of one data set over its seeds, with the settings."""
    clusters = [c for m in measured for c in m["clusters"]]
    domains = np.array([d for m in measured for d in m["domains"]])
    names = list(measured[0]["systems"])
    own = {n: [m["systems"][n] for m in measured] for n in names}
    hits = {n: np.array([x for t in own[n] for x in t["hits"]]) for n in names}
    return {
        "recipe": measured[0]["recipe"],
        "choice": measured[0]["choice"],
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


STUDY = Study(
    name="matched",
    help="Compare RED, a dense head and mixtures of equal size.",
    schema="red-lab.matched/1",
    parts=("arithmetic", "text"),
    seeds=3,
    measure=measure_cell,
    summarise=summarise,
    names=lambda _: {"red": RED, "evidence": EVIDENCE},
    draw=draw,
)
matched = STUDY.command
