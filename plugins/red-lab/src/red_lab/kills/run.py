"""Kill at every step and at random moments, and put figures on it."""

from __future__ import annotations

import multiprocessing
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import redhost
from red_lab.kills.home import Watched
from red_lab.progress import Bar
from redhost.testing import Kill, kill_at_every_step, kill_at_random

__all__ = ["campaign", "forked_seconds", "outcome", "require", "summary", "unexpected", "watch"]


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
    at_steps = watch(kill_at_every_step(steps.publish, steps.check), bar, 0)
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
    at_random = watch(kills, bar, len(at_steps))
    return {
        "schema": "red-lab.kills/1",
        "redhost": redhost.__version__,
        "python": platform.python_version(),
        "seed": seed,
        "kills": len(at_steps) + len(at_random),
        "bad": sum(k.problem is not None for k in [*at_steps, *at_random]),
        "steps": summary(at_steps, steps.published),
        "random": {**summary(at_random, chance.published), "longest": longest},
    }


def watch(kills: Iterator[Kill], bar: Bar, done: int) -> list[Kill]:
    """Return kills as they happen to be, and show how far they are.

    Args:
        kills: Each as it happens.
        bar: Where to show it.
        done: How many there were before.
    """
    found: list[Kill] = []
    for kill in kills:
        found.append(kill)
        bar.update(done + len(found), note=f"{sum(k.problem is not None for k in found)} bad")
    return found


def summary(kills: Sequence[Kill], current: int) -> dict[str, Any]:
    """Return the metrics of kills.

    Args:
        kills: All of one kind.
        current: How many came after the new generation was current.
    """
    return {
        "kills": len(kills),
        "new_generation_current": current,
        "bad": [f"{k.where}: {k.problem}" for k in kills if k.problem],
    }


def outcome(receipt: redhost.Receipt) -> tuple[str, tuple[str, ...]]:
    """Return what a recompose made: the digest of its router, and its experts."""
    return receipt.router.digest, tuple(sorted(receipt.experts))


def require(found: object, right: object) -> None:
    """Raise where something is not what it should be: an error that no user may meet."""
    if found != right:
        raise AssertionError(f"found {found}, not {right}")


def unexpected(body: Callable[[], object]) -> str | None:
    """Return what a body raises, if that is no error of ours."""
    try:
        body()
    except redhost.errors.RedhostError:
        return None
    except Exception as e:  # whatever it is, it is what a user would meet
        return repr(e)
    return None


def forked_seconds(body: Callable[[], object]) -> float:
    """Return how long a body takes in a process of its own, as those that are killed.

    Raises:
        CompositionError: If it fails although nothing was killed.
    """
    start = time.perf_counter()
    process = multiprocessing.get_context("fork").Process(target=body)
    process.start()
    process.join()
    if process.exitcode:
        raise redhost.errors.CompositionError("it failed before anything was killed")
    return time.perf_counter() - start


def _seconds(home: Watched) -> float:
    """Return how long a recompose takes."""
    seconds = []
    for _ in range(3):
        seconds.append(forked_seconds(home.publish))
        home.before += 1
    return statistics.median(seconds)
