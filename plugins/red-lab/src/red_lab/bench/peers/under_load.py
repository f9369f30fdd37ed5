"""Query without a pause during changes, and count the wrong answers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

__all__ = ["LoadTally", "under_load"]


@dataclass
class LoadTally:
    """Counts of a client's answers."""

    answers: int = 0
    wrong: int = 0
    errors: list[str] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        """Return the entries for a results file."""
        return {
            "answers": self.answers,
            "wrong": self.wrong,
            "errors": len(self.errors),
            "first_errors": self.errors[:3],
        }


@contextmanager
def under_load(ask: Callable[[], Sequence[str]], expected: Sequence[str]) -> Iterator[LoadTally]:
    """Let one thread query all the time; the tally is complete when the block is left.

    Args:
        ask: Sends a few queries at once, and returns the answers.
        expected: The correct answers.
    """
    tally, over = LoadTally(), threading.Event()

    def client() -> None:
        while not over.is_set():
            try:
                answers = ask()
            except Exception as e:  # every failure of a client is counted
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
