"""Kill servers during swaps, at every step and at random moments."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from red_lab.progress import Bar

from kills.run import forked_seconds, summary, watch
from kills.served import ServedHome, ask_forked, ask_process, kill_processes
from redhost.testing.fault_injection import Kill, kill_at_every_step, kill_at_random

__all__ = ["server_campaign"]

PROCESSES = 25
"""Number of kills of a newly started `redhost serve`, which takes seconds."""

LIFE = 1.0
"""Seconds of swaps within which it is killed."""


def server_campaign(folder: Path, *, count: int, seed: int) -> dict[str, Any]:
    """Kill servers during swaps; return the section ``server`` of the metrics.

    Args:
        folder: An empty folder.
        count: Minimum number of kills; those at every step and of processes are always made.
        seed: Random seed of the moments.
    """
    bar, done = Bar("server kills", total=count), 0
    parts: dict[str, Any] = {}

    def note(name: str, home: ServedHome, kills: Iterator[Kill], **more: float) -> None:
        nonlocal done
        found = watch(kills, bar, done)
        done += len(found)
        parts[name] = {**summary(found, home.swapped), **more}

    home = ServedHome(folder / "steps", ask_forked)
    longest = 2 * forked_seconds(home.swap)  # about one half of it starts the server
    home.restore()
    note("steps", home, kill_at_every_step(home.swap, home.check))
    home = ServedHome(folder / "processes", ask_process)
    kills = kill_processes(home, count=PROCESSES, longest=LIFE, seed=seed)
    note("processes", home, kills, longest=LIFE)
    home, left = ServedHome(folder / "random", ask_forked), max(1, count - done)
    kills = kill_at_random(home.swap_on, home.check, count=left, longest=longest, seed=seed)
    note("random", home, kills, longest=longest)
    bad = sum(len(part["bad"]) for part in parts.values())
    return {**parts, "kills": done, "bad": bad, "seed": seed}
