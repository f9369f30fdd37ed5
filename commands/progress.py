"""What is under way: a bar for each stage on a terminal, elsewhere a line now and then."""

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
    """How far one stage is.

    A stage that is entered again has more to do: it goes on from where it was, and never back to
    nothing.

    Attributes:
        name: Its name.
        done: Of the passes that ended, and of this one.
        total: Likewise.
        note: What is shown beside it.
        began: When this pass did, by the monotonic clock.
    """

    name: str
    done: int = 0
    total: int = 0
    note: str = ""
    ended: int = 0
    latest: tuple[int, int] = (0, 0)
    began: float = field(default_factory=time.monotonic)

    def move(self, done: int, total: int) -> None:
        """Take note of where this pass is."""
        before, of = self.latest
        if done < before or total != of:
            self.ended += before
        self.latest = (done, total)
        self.done, self.total = self.ended + done, self.ended + total

    @property
    def pace(self) -> str:
        """How fast this pass goes, and when it ends if it goes on so."""
        done, total = self.latest
        rate = done / max(time.monotonic() - self.began, 1e-9)
        return f"{rate:.3g} a second, {(total - done) / rate:,.0f} s to go" if done else ""

    def __str__(self) -> str:
        parts = (f"{self.name} {self.done:,} of {self.total:,}", self.pace, self.note)
        return ", ".join(filter(None, parts))


@dataclass
class Stages(StagedProgress):
    """What is called by long work.

    Attributes:
        title: What work without a name is called.
        bars: Where stages are drawn; None for nowhere.
        stages: Those so far, by name; the last that moved is `current`.
        tasks: Their bars.
    """

    title: str
    bars: Bars | None = None
    stages: dict[str, Stage] = field(default_factory=dict)
    current: Stage | None = None
    tasks: dict[str, TaskID] = field(default_factory=dict)

    def __call__(self, done: int, total: int) -> None:
        """Take note of work that has no name."""
        self._move(self.title, "", done, total)

    def stage(self, name: str, note: str = "") -> Progress:
        """Return what is called for a stage, which begins now."""
        self.stages.setdefault(name, Stage(name)).began = time.monotonic()
        return partial(self._move, name, note)

    def _move(self, name: str, note: str, done: int, total: int) -> None:
        if total <= 0:
            return  # a bar of nothing would be a full one
        stage = self.current = self.stages.setdefault(name, Stage(name))
        stage.note = note
        stage.move(done, total)
        if self.bars is None:
            return
        if name not in self.tasks:
            self.tasks[name] = self.bars.add_task(one_line(name), note="")
        beside = one_line(", ".join(filter(None, (stage.pace, stage.note))))
        self.bars.update(self.tasks[name], completed=stage.done, total=stage.total, note=beside)


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
        redirect_stdout=False,  # what others print meanwhile stays with the streams that escape it
        redirect_stderr=False,
    )
    with bars:
        waiting = bars.add_task(title, total=None, note="")
        stages = Stages(title, bars)
        stages.tasks[title] = waiting
        yield stages


@contextmanager
def say(title: str, *, every: float | None = None) -> Iterator[Stages]:
    """Say a line on stderr now and then while the block runs.

    Args:
        title: What runs.
        every: Seconds between two lines, in place of `EVERY`.
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
