"""Check mutants in a separate process, so that a crash cannot end the campaign."""

from __future__ import annotations

import multiprocessing
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal

from redhost_author.testing import judge_expert

from mutants.generate import Mutant
from mutants.subject import WHEEL

__all__ = ["MEMORY", "SECONDS", "Judge", "Result", "judge_all", "judge_mutant"]

SECONDS, MEMORY = 2.0, 64 * 2**20
"""Limits of a decision: CPU time, and memory beyond the mutant's own size.

Wall-clock time would include the load of other processes on a busy machine.
"""

PATIENCE = 20.0
"""Wall-clock seconds after which a decision is aborted."""

CEILING = 4 * 2**30
"""Address space that a checking process may add; it protects the machine and is no tested limit."""

MutantOutcome = Literal["refused", "refused by digest", "same", "crash", "hang", "memory"]
Judge = Callable[[Mutant], tuple[str, str]]
"""Maps a mutant to ``refused``, ``refused by digest`` or ``same``, and the reason."""


@dataclass(frozen=True)
class Result:
    """The result of a mutant.

    Attributes:
        number: Number of the mutant.
        target: Target of the mutant.
        kind: Kind of the mutant.
        size: Size of the mutant in bytes.
        outcome: ``refused``: it breaks a rule of the contract. ``refused by digest``: it breaks no
            rule, but is a different expert. ``same``: it loads with the same digest. All other
            outcomes are failures of the host.
        why: The violation's code, or the exception.
        seconds: CPU time of the decision.
        memory: Peak memory in bytes that the decision added; None if it cannot be measured.
    """

    number: int
    target: str
    kind: str
    size: int
    outcome: MutantOutcome
    why: str
    seconds: float
    memory: int | None

    @property
    def bad(self) -> bool:
        """Return whether the host failed."""
        return self.outcome in {"crash", "hang", "memory"}


def judge_mutant(mutant: Mutant) -> tuple[str, str]:
    """Let the host decide, as if a composition named the good expert's digest."""
    if isinstance(mutant.data, Mapping):
        found = judge_expert(mutant.data, digest=mutant.digest)
    else:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / WHEEL
            path.write_bytes(mutant.data)
            found = judge_expert(path, digest=mutant.digest)
    if isinstance(found, str):
        return ("same" if found == mutant.digest else "another digest was let in"), ""
    return ("refused by digest" if found[0].code == "digest" else "refused"), found[0].code


def judge_all(stream: Iterable[Mutant], *, judge: Judge = judge_mutant) -> Iterator[Result]:
    """Check mutants one after the other; a process that dies is replaced.

    Args:
        stream: The mutants.
        judge: The function that decides.
    """
    worker = _Worker(judge)
    try:
        for mutant in stream:
            result = worker.ask(mutant)
            if result is None:
                worker.stop()
                worker = _Worker(judge)
                result = _result(mutant, "crash", "the process died or never answered", PATIENCE)
            yield result
    finally:
        worker.stop()


class _Worker:
    """A process that checks the mutants it receives."""

    def __init__(self, judge: Judge) -> None:
        context = multiprocessing.get_context("fork")
        self.pipe, there = context.Pipe()
        self.process = context.Process(target=_serve, args=(there, judge), daemon=True)
        self.process.start()
        there.close()

    def ask(self, mutant: Mutant) -> Result | None:
        """Return the result, or None if the process died or took too long."""
        try:
            self.pipe.send(mutant)
            if not self.pipe.poll(PATIENCE):
                return None
            result: Result = self.pipe.recv()
        except (EOFError, OSError):
            return None
        return result

    def stop(self) -> None:
        """End the process at once."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


def _serve(pipe: Connection, judge: Judge) -> None:
    if sys.platform == "linux":
        taken = int(Path("/proc/self/statm").read_text("ascii").split()[0])
        limit = taken * resource.getpagesize() + CEILING
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    while True:
        pipe.send(_decide(pipe.recv(), judge))


def _decide(mutant: Mutant, judge: Judge) -> Result:
    before = _start_memory()
    start = time.process_time()
    try:
        outcome, why = judge(mutant)
    except BaseException as e:
        outcome, why = "crash", repr(e)[:300]
    seconds = time.process_time() - start
    memory = None if before is None else max(0, _memory("VmHWM") - before)
    if outcome not in {"refused", "refused by digest", "same"}:
        return _result(mutant, "crash", why or outcome, seconds, memory)
    if seconds > SECONDS:
        return _result(mutant, "hang", why, seconds, memory)
    if memory is not None and memory > mutant.size + MEMORY:
        return _result(mutant, "memory", why, seconds, memory)
    return _result(mutant, outcome, why, seconds, memory)  # type: ignore[arg-type]


def _result(
    mutant: Mutant, outcome: MutantOutcome, why: str, seconds: float, memory: int | None = None
) -> Result:
    return Result(
        mutant.number, mutant.target, mutant.kind, mutant.size, outcome, why, seconds, memory
    )


def _start_memory() -> int | None:
    """Reset the peak memory and return the current use; None if this is not possible."""
    try:
        Path("/proc/self/clear_refs").write_text("5", "ascii")
        return _memory("VmRSS")
    except OSError:
        return None


def _memory(key: str) -> int:
    for line in Path("/proc/self/status").read_text("ascii").splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"no {key} in /proc/self/status")
