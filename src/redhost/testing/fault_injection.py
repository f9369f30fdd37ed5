"""Inject faults at a step of writing, for tests: the disk fails there, or the process dies.

The registry writes only through the primitives of `atomic`; here all of them are replaced
temporarily. Public as part of `redhost.testing`.
"""

from __future__ import annotations

import errno
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..registry import atomic

Moment = Literal["before", "within", "after"]

MOMENTS: tuple[Moment, ...] = ("before", "within", "after")
"""When to strike; ``within`` leaves half of a file, and equals ``before`` for other primitives."""

MOST_STEPS = 1000

Real = Callable[[], None]
Patch = Callable[[int, str, Real, tuple[object, ...]], None]
"""Takes the step's number from 1, the primitive's name, the real call, and its arguments."""


@dataclass(frozen=True)
class Kill:
    """A process that was killed, and the state it left.

    Attributes:
        where: The step and the moment, or the seconds after the start.
        problem: What is wrong with that state; None if nothing is.
    """

    where: str
    problem: str | None


@contextmanager
def patched(strike: Patch) -> Iterator[list[str]]:
    """Replace every primitive by a function while the body runs.

    Args:
        strike: Called in place of each primitive; it may call the real one, or not.

    Yields:
        The names of the primitives called so far.
    """
    calls: list[str] = []
    real = {name: getattr(atomic, name) for name in atomic.PRIMITIVES}

    def replaced(name: str) -> Callable[..., None]:
        def call(*arguments: object) -> None:
            calls.append(name)
            strike(len(calls), name, lambda: real[name](*arguments), arguments)

        return call

    for name in real:
        setattr(atomic, name, replaced(name))
    try:
        yield calls
    finally:
        for name, function in real.items():
            setattr(atomic, name, function)


def fail_at(
    *, at: int | None = None, name: str | None = None, code: int = errno.ENOSPC
) -> AbstractContextManager[list[str]]:
    """Make the disk fail while the body of a ``with`` runs.

    Args:
        at: The step that fails, from 1.
        name: The primitive that fails, every time.
        code: The `errno` code of the failure; by default, a full disk.

    Returns:
        A context manager that yields the names of the primitives called so far.
    """

    def strike(step: int, one: str, real: Real, arguments: tuple[object, ...]) -> None:
        if at == step or name == one:
            _half(one, arguments)
            raise OSError(code, os.strerror(code))
        real()

    return patched(strike)


def kill_at(*, at: int, moment: Moment = "before") -> AbstractContextManager[list[str]]:
    """Kill this process with signal 9 at a step that the body of a ``with`` writes.

    Args:
        at: The step, from 1.
        moment: Before, within or after it.

    Returns:
        A context manager that yields the names of the primitives called so far.
    """

    def strike(step: int, name: str, real: Real, arguments: tuple[object, ...]) -> None:
        if step != at or moment == "after":
            real()
        if step == at:
            if moment == "within":
                _half(name, arguments)
            os.kill(os.getpid(), signal.SIGKILL)

    return patched(strike)


def kill_at_every_step(
    body: Callable[[], object], check: Callable[[], str | None]
) -> Iterator[Kill]:
    """Run a body in forked processes that die before, within and after each step it writes.

    Args:
        body: A function that writes; it must write the same steps each time.
        check: Called after each kill; returns what is wrong, and repairs it.

    Yields:
        Each kill, as it happens.
    """
    for moment in MOMENTS:
        for step in range(1, MOST_STEPS):

            def armed(step: int = step, moment: Moment = moment) -> None:
                with kill_at(at=step, moment=moment):
                    body()

            if not os.WIFSIGNALED(os.waitpid(_fork(armed), 0)[1]):
                break
            yield Kill(f"{moment} step {step}", check())


def kill_at_random(
    body: Callable[[], object],
    check: Callable[[], str | None],
    *,
    count: int,
    longest: float,
    seed: int,
) -> Iterator[Kill]:
    """Run a body repeatedly in forked processes, and kill each at a random moment.

    Args:
        body: A function that writes.
        check: Called after each kill; returns what is wrong, and repairs it.
        count: The number of kills.
        longest: Seconds until the latest kill.
        seed: The seed of the moments.

    Yields:
        Each kill, as it happens.
    """
    moments = random.Random(seed)  # noqa: S311  (moments, not secrets)

    def forever() -> None:
        while True:
            body()

    for _ in range(count):
        seconds = moments.uniform(0.0, longest)
        child = _fork(forever)
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
        if not os.WIFSIGNALED(os.waitpid(child, 0)[1]):
            raise RuntimeError("the process that was to be killed ended by itself")
        yield Kill(f"after {seconds:.3f} s", check())


def _half(name: str, arguments: tuple[object, ...]) -> None:
    """Do half of a write, as when a disk fills up."""
    if name == "write_file":
        path, data = arguments
        if isinstance(path, Path) and isinstance(data, bytes):
            path.write_bytes(data[: len(data) // 2])


def _fork(body: Callable[[], object]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            body()
            os._exit(0)
        except BaseException:
            os._exit(1)
    return pid
