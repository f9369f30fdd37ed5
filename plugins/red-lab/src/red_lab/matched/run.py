"""Run `redhost lab matched`: seeds of both data sets, each saved when it finishes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from red_lab.matched.choice import choose
from red_lab.matched.data import Problem
from red_lab.matched.figures import draw
from red_lab.matched.measure import measure
from red_lab.matched.recipe import ARITHMETIC, TEXT, Recipe, Tick
from red_lab.matched.report import page
from red_lab.matched.summary import SCHEMA, summarise
from red_lab.matched.tasks import load
from red_lab.metrics import cached_json, read_metrics, write_results
from red_lab.progress import Bar
from red_lab.toy.data import one_thread

__all__ = ["run"]

TRAININGS = 9
"""Number of trainings in a seed: three systems, five experts and a router."""


def run(*, tasks: Sequence[str], seeds: int, out: Path, work: Path) -> Path:
    """Measure the seeds that are not on disk yet; write metrics.json, the page and the figure.

    Args:
        tasks: Names from `red_lab.matched.tasks.TASKS`; results of other tasks are kept.
        seeds: Number of random seeds.
        out: Folder of the results.
        work: Folder of features and of single seeds.

    Returns:
        The path of metrics.json.
    """
    summaries = read_metrics(out).get("tasks", {})
    for name in tasks:
        summaries[name] = _TaskRun(name, work).summary(seeds)
    metrics = {"schema": SCHEMA, "tasks": dict(sorted(summaries.items()))}
    return write_results(metrics, out, page=page, draw=draw, sort_keys=False)


@dataclass(frozen=True)
class _TaskRun:
    """One data set and the folders of its results."""

    name: str
    work: Path

    @property
    def folder(self) -> Path:
        """The folder of single seeds."""
        folder = self.work / "matched"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def summary(self, seeds: int) -> dict[str, Any]:
        """Return the metrics over seeds."""
        recipe, choice = self.recipe()
        measured = [self.measured(seed, recipe) for seed in range(seeds)]
        return {"recipe": asdict(recipe), "choice": choice, **summarise(measured)}

    def recipe(self) -> tuple[Recipe, dict[str, Any] | None]:
        """Return the recipe and how its epochs were chosen; for arithmetic they are fixed."""
        if self.name == "arithmetic":
            return ARITHMETIC, None
        file = self.folder / f"{self.name}-epochs.json"
        choice = choose(lambda: self.problem(0), recipe=TEXT, file=file, shown=self.shown)
        return replace(TEXT, epochs=choice["epochs"]), choice

    def problem(self, seed: int) -> Problem:
        """Return the data of a seed; features on disk count the threads they were made with."""
        return load(self.name, seed=seed, work=self.work)

    def measured(self, seed: int, recipe: Recipe) -> dict[str, Any]:
        """Return the results of one seed, stored or measured now."""
        return cached_json(
            self.folder / f"{self.name}-{seed}.json", lambda: self._measure(seed, recipe)
        )

    def _measure(self, seed: int, recipe: Recipe) -> dict[str, Any]:
        problem, tick = self.problem(seed), self.shown(f"seed {seed}", recipe.epochs)
        with one_thread():
            return measure(problem, recipe=recipe, seed=seed, tick=tick)

    def shown(self, what: str, epochs: int) -> Tick:
        """Return a progress bar over all epochs of all systems."""
        bar = Bar(f"matched, {self.name}, {what}", total=TRAININGS * epochs)
        done = itertools.count(1)
        return lambda name: bar.update(next(done), name)
