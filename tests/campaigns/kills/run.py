"""Kill recomposes at every step and at random moments, and summarise the results."""

from __future__ import annotations

import multiprocessing
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from red_lab.progress import Bar

import redhost
from kills.home import Watched
from redhost.testing.fault_injection import Kill, kill_at_every_step, kill_at_random

__all__ = ["campaign", "forked_seconds", "outcome", "require", "summary", "unexpected", "watch"]


def campaign(folder: Path, *, count: int, seed: int, backbone: str) -> dict[str, Any]:
    """Kill recomposes; return metrics of the schema ``red-lab.kills/1``.

    Args:
        folder: An empty folder.
        count: Minimum number of kills; those at every step come first.
        seed: Random seed of the moments.
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
    """Return all kills, and show the progress.

    Args:
        kills: Each kill as it happens.
        bar: The progress bar.
        done: Number of earlier kills.
    """
    found: list[Kill] = []
    for kill in kills:
        found.append(kill)
        bar.update(done + len(found), note=f"{sum(k.problem is not None for k in found)} bad")
    return found


def summary(kills: Sequence[Kill], current: int) -> dict[str, Any]:
    """Return the metrics of kills.

    Args:
        kills: All kills of one kind.
        current: Number of kills after the new generation was current.
    """
    return {
        "kills": len(kills),
        "new_generation_current": current,
        "bad": [f"{k.where}: {k.problem}" for k in kills if k.problem],
    }


def outcome(receipt: redhost.Receipt) -> tuple[str, tuple[str, ...]]:
    """Return the outcome of a recompose: the digest of its router, and its experts."""
    return receipt.router.digest, tuple(sorted(receipt.experts))


def require(found: object, right: object) -> None:
    """Raise an AssertionError, which is no error of redhost, if a result is not as expected."""
    if found != right:
        raise AssertionError(f"found {found}, not {right}")


def unexpected(body: Callable[[], object]) -> str | None:
    """Return the exception that a function raises, unless it is an error of redhost."""
    try:
        body()
    except redhost.RedhostError:
        return None
    except Exception as e:  # any exception is one that a user would get
        return repr(e)
    return None


def forked_seconds(body: Callable[[], object]) -> float:
    """Return how long a function takes in a process of its own, like those that are killed.

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
