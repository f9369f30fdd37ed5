"""One process that runs a command, and reports its time by step.

    python -m red_lab.bench.profile_child STARTED OUT STEPS REPEATS COMMAND…

Functions are wrapped where they are used, under the name of their step. Seconds exclude those of
nested steps, so the steps add up to the total.
"""

from __future__ import annotations

import functools
import gc
import importlib
import json
import runpy
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["REST", "Clock", "find", "main"]

REST = "everything else"


class Clock:
    """Seconds by step, without those of nested steps."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._inner = [0.0]

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Add the block's time, without that of nested steps."""
        start = time.perf_counter()
        self._inner.append(0.0)
        try:
            yield
        finally:
            took = time.perf_counter() - start
            self.seconds[name] += took - self._inner.pop()
            self._inner[-1] += took

    def repeated(self, work: Callable[[], object], times: int) -> list[dict[str, float]]:
        """Return the seconds by step of each time that some work is done."""
        taken = []
        for _ in range(times):
            self.seconds.clear()
            with self.step(REST):
                work()
            taken.append(dict(self.seconds))
        return taken

    def wrap(self, name: str, place: str) -> bool:
        """Count a function's time; return whether ``module:Class.function`` exists."""
        found = find(place)
        if found is None:
            return False
        owner, last = found
        setattr(owner, last, self._counted(name, getattr(owner, last)))
        return True

    def _counted(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def counted(*args: Any, **kwargs: Any) -> Any:
            with self.step(name):
                return original(*args, **kwargs)

        return counted


def find(place: str) -> tuple[Any, str] | None:
    """Return the owner and the name of a function; None if it does not exist."""
    module, _, path = place.partition(":")
    *owners, last = path.split(".")
    try:
        owner: Any = importlib.import_module(module)
        for part in owners:
            owner = getattr(owner, part)
    except (ImportError, AttributeError):
        return None
    return (owner, last) if hasattr(owner, last) else None


def main(arguments: Sequence[str]) -> None:
    """Run the command and write its times."""
    clock = Clock()
    started, out, encoded_steps, repeats, *command = arguments
    clock.seconds["Python starts"] = time.time() - float(started)
    gc.disable()  # during imports, as the command does
    with clock.step("import torch"):
        importlib.import_module("torch")
    with clock.step("import redhost"):
        for name in ("redhost.cli", "redhost.core.host", "redhost.commands.compose"):
            importlib.import_module(name)
    gc.freeze()
    gc.enable()
    steps: Mapping[str, Sequence[str]] = json.loads(encoded_steps)
    lost = [p for step, places in steps.items() for p in places if not clock.wrap(step, p)]
    with clock.step(REST):
        _command(command)
    cold = dict(clock.seconds)
    warm = _again(command, clock, int(repeats)) if int(repeats) else []
    found = {"cold": cold, "warm": warm, "lost": lost, "ended": time.time()}
    Path(out).write_text(json.dumps(found), "utf-8")


def _command(command: Sequence[str]) -> None:
    """Run a command line as `python -m redhost` does."""
    sys.argv = ["redhost", *command]
    try:
        runpy.run_module("redhost", run_name="__main__")
    except SystemExit as e:
        if e.code:
            raise


def _again(command: Sequence[str], clock: Clock, repeats: int) -> list[dict[str, float]]:
    """Answer the command's text again, in this process; return the seconds of each time."""
    import redhost

    host = redhost.Host.open(command[command.index("--home") + 1])
    host.predict([command[-1]])
    return clock.repeated(lambda: host.predict([command[-1]]), repeats)


if __name__ == "__main__":
    main(sys.argv[1:])
