"""Kill at every step and at random moments, and put figures on it."""

from __future__ import annotations

import multiprocessing
import platform
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import redhost
from red_lab.kills.home import Watched
from red_lab.progress import Bar
from redhost.testing import Kill, kill_at_every_step, kill_at_random

__all__ = ["campaign"]


def campaign(folder: Path, *, count: int, seed: int, backbone: str) -> dict[str, Any]:
    """Kill recomposes; return metrics of the schema ``red-lab.kills/1``.

    Args:
        folder: An empty folder.
        count: How many kills at least; those at every step come first.
        seed: Of the random moments.
        backbone: The backbone's id.
    """
    steps = Watched(folder / "steps", backbone)
    steps.prepare()
    bar = Bar("kills", total=count)
    at_steps = _watch(kill_at_every_step(steps.publish, steps.check), bar, 0)
    chance = Watched(folder / "random", backbone)
    chance.prepare()
    longest = _seconds(chance)
    kills = kill_at_random(
        chance.publish,
        chance.check,
        count=max(1, count - len(at_steps)),
        longest=longest,
        seed=seed,
    )
    at_random = _watch(kills, bar, len(at_steps))
    return {
        "schema": "red-lab.kills/1",
        "redhost": redhost.__version__,
        "python": platform.python_version(),
        "seed": seed,
        "kills": len(at_steps) + len(at_random),
        "bad": sum(k.problem is not None for k in [*at_steps, *at_random]),
        "steps": _told(at_steps, steps),
        "random": {**_told(at_random, chance), "longest": longest},
    }


def _watch(kills: Iterator[Kill], bar: Bar, done: int) -> list[Kill]:
    found: list[Kill] = []
    for kill in kills:
        found.append(kill)
        bar.update(done + len(found), note=f"{sum(k.problem is not None for k in found)} bad")
    return found


def _told(kills: Sequence[Kill], home: Watched) -> Mapping[str, Any]:
    return {
        "kills": len(kills),
        "new_generation_current": home.published,
        "bad": [f"{k.where}: {k.problem}" for k in kills if k.problem],
    }


def _seconds(home: Watched) -> float:
    """Return how long a recompose takes, in a process of its own, as those that are killed."""
    context, seconds = multiprocessing.get_context("fork"), []
    for _ in range(3):
        start = time.perf_counter()
        process = context.Process(target=home.publish)
        process.start()
        process.join()
        seconds.append(time.perf_counter() - start)
        if process.exitcode:
            raise redhost.CompositionError("a recompose failed before anything was killed")
        home.before += 1
    return statistics.median(seconds)
