"""A progress bar on stderr for long work."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

__all__ = ["Bar", "shown"]


class Bar:
    """One line that is rewritten at most ten times a second, on a terminal only.

    If stderr is not a terminal (a log), a line is written every ``interval`` seconds instead.

    Args:
        label: Description of the work.
        total: The total number of steps.
        stream: The output stream; stderr by default.
        interval: Seconds between two lines of a log.
    """

    def __init__(
        self, label: str, *, total: int, stream: TextIO | None = None, interval: float = 15.0
    ) -> None:
        self.label = label
        self.total = max(total, 1)
        self.stream = stream or sys.stderr
        self.live = self.stream.isatty()
        self.pause = 0.1 if self.live else interval
        self.started = time.monotonic()
        self.first: int | None = None
        self.shown = 0.0

    def update(self, done: int, note: str = "") -> None:
        """Show that ``done`` steps are finished."""
        now = time.monotonic()
        if self.first is None:
            self.first = done - 1
        if done < self.total and now - self.shown < self.pause:
            return
        self.shown = now
        text = self.line(done, seconds=now - self.started, note=note)
        end = "\n" if done >= self.total or not self.live else ""
        self.stream.write(("\r" if self.live else "") + text + end)
        self.stream.flush()

    def line(self, done: int, *, seconds: float, note: str = "", width: int = 24) -> str:
        """Return the bar's text after ``done`` steps and ``seconds``."""
        filled = width * done // self.total
        fresh = max(done - (self.first or 0), 1)
        left = seconds / fresh * (self.total - done)
        bar = "#" * filled + "." * (width - filled)
        times = f"{seconds:.0f}s<{left:.0f}s"
        return f"{self.label} [{bar}] {done}/{self.total} {times} {note}".rstrip()


def shown(label: str) -> Callable[[int, int], None]:
    """Return a function that shows (steps done, steps in all) as a bar."""
    bar: Bar | None = None

    def show(done: int, total: int) -> None:
        nonlocal bar
        bar = bar or Bar(label, total=total)
        bar.update(done)

    return show
