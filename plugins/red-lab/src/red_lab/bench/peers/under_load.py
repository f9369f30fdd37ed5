"""Ask without a pause while something changes, and count the answers that are wrong."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

__all__ = ["LoadTally", "under_load"]


@dataclass
class LoadTally:
    """What a client got."""

    answers: int = 0
    wrong: int = 0
    errors: list[str] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        """Return what goes into a results file."""
        return {
            "answers": self.answers,
            "wrong": self.wrong,
            "errors": len(self.errors),
            "first_errors": self.errors[:3],
        }


@contextmanager
def under_load(ask: Callable[[], Sequence[str]], expected: Sequence[str]) -> Iterator[LoadTally]:
    """Let one thread ask all the time; the tally is complete when the block is left.

    Args:
        ask: Asks a few questions at once, and returns the answers.
        expected: The right ones.
    """
    tally, over = LoadTally(), threading.Event()

    def client() -> None:
        while not over.is_set():
            try:
                answers = ask()
            except Exception as e:  # whatever a client meets is counted
                tally.errors.append(f"{type(e).__name__}: {e}")
                continue
            tally.answers += len(answers)
            tally.wrong += sum(a != b for a, b in zip(answers, expected, strict=True))

    thread = threading.Thread(target=client, daemon=True)
    thread.start()
    try:
        yield tally
    finally:
        over.set()
        thread.join()
