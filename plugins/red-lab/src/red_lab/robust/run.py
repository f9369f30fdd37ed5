"""Run `redhost lab robust`: finite games, and seeds of uneven traffic, saved when they finish."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from red_lab.matched.recipe import ARITHMETIC, TEXT, Recipe
from red_lab.matched.tasks import load
from red_lab.metrics import cached_json, read_metrics, write_results
from red_lab.robust.figures import draw
from red_lab.robust.finite import finite
from red_lab.robust.measure import measure
from red_lab.robust.report import page
from red_lab.robust.summary import SCHEMA, summarise
from red_lab.toy.data import one_thread

__all__ = ["RECIPES", "TASKS", "run"]

log = logging.getLogger("red_lab")

TASKS = ("finite", "arithmetic", "text")

RECIPES: Mapping[str, Recipe] = {
    "arithmetic": replace(ARITHMETIC, epochs=12),
    "text": replace(TEXT, epochs=20),
}
"""Recipes of `redhost lab matched` with fewer epochs: six monoliths are trained in every seed."""


def run(*, tasks: Sequence[str], seeds: int, out: Path, work: Path) -> Path:
    """Measure the seeds that are not on disk yet; write metrics.json, the page and the figures.

    Args:
        tasks: Names from `TASKS`; results of other tasks are kept.
        seeds: Number of random seeds.
        out: Folder of the results.
        work: Folder of features and of single seeds.

    Returns:
        The path of metrics.json.
    """
    summaries = read_metrics(out).get("tasks", {})
    folder = work / "robust"
    folder.mkdir(parents=True, exist_ok=True)
    for task in tasks:
        summaries[task] = finite() if task == "finite" else _task(task, seeds, folder, work)
    ordered = {t: summaries[t] for t in TASKS if t in summaries}
    return write_results(
        {"schema": SCHEMA, "tasks": ordered}, out, page=page, draw=draw, sort_keys=False
    )


def _task(task: str, seeds: int, folder: Path, work: Path) -> dict[str, Any]:
    recipe = RECIPES[task]
    measured = [
        cached_json(folder / f"{task}-{seed}.json", partial(_seed, task, seed, recipe, work))
        for seed in range(seeds)
    ]
    return {"recipe": asdict(recipe), **summarise(measured)}


def _seed(task: str, seed: int, recipe: Recipe, work: Path) -> dict[str, Any]:
    problem = load(task, seed=seed, work=work)
    with one_thread():
        return measure(
            problem,
            recipe=recipe,
            seed=seed,
            say=lambda what: log.info("robust, %s, seed %d: %s", task, seed, what),
        )
