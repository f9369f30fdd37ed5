"""`redhost lab matched` as a study: equally many parameters in four architectures."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from red_lab.metrics import Metrics
from red_lab.progress import Bar
from red_lab.study import Cell, Study

if TYPE_CHECKING:
    from red_lab.matched.systems import Recipe, Tick

__all__ = ["STUDY", "matched"]

TRAININGS = 9
"""Number of trainings in a seed: three systems, five experts and a router."""


def measure(cell: Cell) -> dict[str, Any]:
    """Return the results of one seed of a data set, with the recipe and how it was chosen."""
    from red_lab.matched.data import load
    from red_lab.matched.measure import measure as measure_seed
    from red_lab.training import one_thread

    chosen, choice = recipe(cell)
    problem = load(cell.part, seed=cell.seed, work=cell.work)
    tick = shown(cell.part, f"seed {cell.seed}", chosen.epochs)
    with one_thread():
        measured = measure_seed(problem, recipe=chosen, seed=cell.seed, tick=tick)
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
    """Return the metrics of a data set over its seeds."""
    from red_lab.matched.summary import summarise as summarise_seeds

    settings = {key: measured[0][key] for key in ("recipe", "choice")}
    return {**settings, **summarise_seeds(measured)}


def names(_: Metrics) -> Mapping[str, object]:
    """Return the systems that the page names."""
    from red_lab.matched.measure import EVIDENCE, RED

    return {"red": RED, "evidence": EVIDENCE}


def draw(metrics: Metrics, folder: Path) -> None:
    """Write the figure. Matplotlib is imported here only."""
    from red_lab.matched.summary import draw as draw_systems

    draw_systems(metrics, folder)


STUDY = Study(
    name="matched",
    help="Compare RED, a dense head and mixtures of equal size.",
    schema="red-lab.matched/1",
    parts=("arithmetic", "text"),
    seeds=3,
    measure=measure,
    summarise=summarise,
    names=names,
    draw=draw,
)
matched = STUDY.command
