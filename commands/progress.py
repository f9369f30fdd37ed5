"""Progress of long work: a bar for each stage on a terminal, otherwise a line at intervals."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import click

from ..core.types import Progress, StagedProgress
from ..registry.errors import one_line
from .printing import drawing

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

EVERY = 30.0
"""Seconds between two lines."""


@dataclass
class Stage:
    """The progress of one stage.

    A stage that is entered again has more work: its progress continues, and never restarts at zero.

    Attributes:
        name: Its name.
        done: Steps done in earlier passes and in this one.
        total: Steps of earlier passes and of this one.
        note: Text shown next to it.
        began: The start of this pass, by the monotonic clock.
    """

    name: str
    done: int = 0
    total: int = 0
    note: str = ""
    ended: int = 0
    latest: tuple[int, int] = (0, 0)
    began: float = field(default_factory=time.monotonic)

    def move(self, done: int, total: int) -> None:
        """Record the progress of this pass."""
        before, of = self.latest
        if done < before or total != of:
            self.ended += before
        self.latest = (done, total)
        self.done, self.total = self.ended + done, self.ended + total

    @property
    def pace(self) -> str:
        """The speed of this pass, and the time it is expected to take."""
        done, total = self.latest
        rate = done / max(time.monotonic() - self.began, 1e-9)
        return f"{rate:.3g} a second, {(total - done) / rate:,.0f} s to go" if done else ""

    def __str__(self) -> str:
        parts = (f"{self.name} {self.done:,} of {self.total:,}", self.pace, self.note)
        return ", ".join(filter(None, parts))


@dataclass
class Stages(StagedProgress):
    """The progress callback that long work is given.

    Attributes:
        title: The name of work without a stage.
        bars: Where stages are drawn; None for nowhere.
        stages: The stages so far, by name; `current` is the last one that moved.
        tasks: Their bars.
    """

    title: str
    bars: Bars | None = None
    stages: dict[str, Stage] = field(default_factory=dict)
    current: Stage | None = None
    tasks: dict[str, TaskID] = field(default_factory=dict)

    def __call__(self, done: int, total: int) -> None:
        """Record progress of work without a stage."""
        self._move(self.title, "", done, total)

    def stage(self, name: str, note: str = "") -> Progress:
        """Begin a stage; return its progress callback."""
        self.stages.setdefault(name, Stage(name)).began = time.monotonic()
        return partial(self._move, name, note)

    def _move(self, name: str, note: str, done: int, total: int) -> None:
        if total <= 0:
            return  # with a total of zero the bar would look full
        stage = self.current = self.stages.setdefault(name, Stage(name))
        stage.note = note
        stage.move(done, total)
        if self.bars is None:
            return
        if name not in self.tasks:
            self.tasks[name] = self.bars.add_task(one_line(name), note="")
        pace = one_line(", ".join(filter(None, (stage.pace, stage.note))))
        self.bars.update(self.tasks[name], completed=stage.done, total=stage.total, note=pace)


@contextmanager
def draw(title: str) -> Iterator[Stages]:
    """Draw a bar for each stage on stderr while the block runs."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"),
    )
    bars = Bars(
        *columns,
        console=drawing(sys.stderr),
        transient=True,
        redirect_stdout=False,  # other output keeps to the streams that escape it
        redirect_stderr=False,
    )
    with bars:
        waiting = bars.add_task(title, total=None, note="")
        yield Stages(title, bars, tasks={title: waiting})


@contextmanager
def say(title: str, *, every: float | None = None) -> Iterator[Stages]:
    """Print a progress line on stderr at intervals while the block runs.

    Args:
        title: The name of the work.
        every: Seconds between two lines, instead of `EVERY`.
    """
    stages, over, start = Stages(title), threading.Event(), time.monotonic()

    def repeat() -> None:
        while not over.wait(EVERY if every is None else every):
            stage = f"{stages.current}, " if stages.current else ""
            click.echo(f"{title}: {stage}{time.monotonic() - start:.0f} s", err=True)

    thread = threading.Thread(target=repeat, name="redhost-progress", daemon=True)
    thread.start()
    try:
        yield stages
    finally:
        over.set()
        thread.join()
