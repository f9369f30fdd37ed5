"""Run `redhost predict --in` as a process that is monitored, paused and killed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from red_lab.bench.rounds import peak_bytes

__all__ = ["Bare", "Driven", "drive"]

Bare = Mapping[str, Callable[[int], float]]
"""Name → function that encodes the texts of a part and returns the seconds."""

LOOK = 0.02
"""Seconds between two checks of a process."""

LATEST = 3.0
"""Maximum random delay of a kill once it is due, in seconds."""

SAVED = "driven.json"


@dataclass(kw_only=True)
class Driven:
    """Measurements of a command so far, over all its processes.

    Attributes:
        seconds: Total running time of the processes, without pauses.
        peak: Largest resident memory of a process, in bytes.
        kills: Numbers of parts after which a process was killed.
        parts: By name, the seconds of single parts: ``redhost``, and the bare encoders.
    """

    seconds: float = 0.0
    peak: int = 0
    kills: list[int] = field(default_factory=list)
    parts: dict[str, list[float]] = field(default_factory=dict)


def drive(
    command: Sequence[str], target: Path, *, bare: Bare, stops: Sequence[int], kills: Sequence[int]
) -> Driven:
    """Run a command until its output exists.

    Args:
        command: ``redhost predict --in … --out TARGET``.
        target: Its output.
        bare: The bare encoders to time for comparison.
        stops: Parts after which it is paused for them, at least two parts apart.
        kills: Parts after which it is killed, after a short random delay, and run again.
    """
    saved = target.with_name(SAVED)
    driven = Driven(**json.loads(saved.read_text("ascii"))) if saved.exists() else Driven()
    parts = target.with_name(f"{target.name}.parts")
    while not target.exists():
        life = _Life(command, parts, driven)
        due = [n for n in kills if n not in driven.kills]
        try:
            life.run(bare, stops, due[0] if due else None)
        finally:
            life.end()
            saved.write_text(json.dumps(asdict(driven)), "ascii")
    return driven


class _Life:
    """One process of a command, from its start to its end or its kill."""

    def __init__(self, command: Sequence[str], parts: Path, driven: Driven) -> None:
        self.parts, self.driven, self.stopped = parts, driven, 0.0
        self.count = self.undisturbed = self._written(0)
        self.started = time.monotonic()
        self.process = subprocess.Popen(  # noqa: S603  (our own command)
            command,
            env={**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )

    def run(self, bare: Bare, stops: Sequence[int], kill: int | None) -> None:
        """Monitor the process until it ends; pause it, and kill it, when due."""
        end = None
        while self.process.poll() is None:
            time.sleep(LOOK)
            self.driven.peak = max(self.driven.peak, peak_bytes(self.process.pid) or 0)
            self.count = self._written(self.count)
            # The second part after a pause is the first one written without an interruption.
            if self.count in stops and self.count >= self.undisturbed + 2:
                self._stop(bare)
            if kill is not None and self.count >= kill:
                end = end or time.monotonic() + random.uniform(0, LATEST)  # noqa: S311
                if time.monotonic() >= end:
                    self.process.kill()
                    self.driven.kills.append(kill)
                    self.process.wait()
                    return
        if self.process.returncode:
            errors = self.process.stderr.read().decode() if self.process.stderr else ""
            raise RuntimeError(f"redhost predict failed: {errors}")

    def end(self) -> None:
        """Kill the process if it still runs, and add its seconds."""
        with suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        if self.process.stderr is not None:
            self.process.stderr.close()
        self.driven.seconds += time.monotonic() - self.started - self.stopped

    def _stop(self, bare: Bare) -> None:
        """Pause the process and time the bare encoders on the part just written."""
        begin = time.monotonic()
        self.process.send_signal(signal.SIGSTOP)
        try:
            last = self.count - 1
            took = {name: encode(last) for name, encode in bare.items()}
            took["redhost"] = self._at(last) - self._at(last - 1)
            for name, seconds in took.items():
                self.driven.parts.setdefault(name, []).append(seconds)
        finally:
            self.process.send_signal(signal.SIGCONT)
        self.undisturbed = self.count
        self.stopped += time.monotonic() - begin

    def _written(self, count: int) -> int:
        """Return the number of written parts, given an earlier number."""
        while self._part(count) is not None:
            count += 1
        return count

    def _at(self, number: int) -> float:
        """Return the time at which a part was written, in seconds."""
        part = self._part(number)
        assert part is not None, number  # noqa: S101  (it is asked for after it was written)
        return part.stat().st_mtime_ns / 1e9

    def _part(self, number: int) -> Path | None:
        return next(self.parts.glob(f"{number:06}-*.jsonl"), None)
