"""Whole processes, timed in turns: seconds, and the peak memory of each."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from redhost.registry.environment import python_command

__all__ = ["PYTHON", "REDHOST", "Process", "Seen", "take_turns"]

PYTHON = tuple(python_command("-c"))
REDHOST = tuple(python_command("-m", "redhost"))


@dataclass(frozen=True, kw_only=True)
class Process:
    """A command to time.

    Attributes:
        command: The command line.
        env: Variables added to the current environment.
        before: Called before each run, not timed.
    """

    command: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    before: Callable[[], None] | None = None


@dataclass(frozen=True)
class Seen:
    """One run: seconds, and peak memory in MiB.

    On Linux a process inherits its parent's peak: run these before anything large is loaded.
    """

    seconds: float
    peak: float


def take_turns(processes: Mapping[str, Process], *, rounds: int) -> dict[str, list[Seen]]:
    """Run every process once per round; the first round, which warms up files, is not counted."""
    found: dict[str, list[Seen]] = {name: [] for name in processes}
    for number in range(rounds + 1):
        for name, process in processes.items():
            seen = _once(process)
            if number:
                found[name].append(seen)
    return found


def _once(process: Process) -> Seen:
    if process.before is not None:
        process.before()
    env: dict[str, Any] = {**os.environ, **process.env}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # installed packages are not recompiled at each start
    start = time.perf_counter()
    with subprocess.Popen(  # noqa: S603  (our own command)
        process.command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as child:
        _, status, usage = os.wait4(child.pid, 0)
        seconds = time.perf_counter() - start
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            errors = child.stderr.read().decode(errors="replace") if child.stderr else ""
            raise RuntimeError(f"{' '.join(process.command)} failed: {errors}")
    return Seen(seconds, usage.ru_maxrss / 1024)
