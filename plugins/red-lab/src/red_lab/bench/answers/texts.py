"""The texts: lines of dialogue and posts, both at their real lengths.

Lines are those of a television series' transcripts, 18 tokens on average; posts are those of the
training file of 20 Newsgroups, most of which fill the encoder. The test file is not opened.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import redhost
from red_lab.newsgroups import lines, rows

__all__ = ["HEAD_ROWS", "Case", "cases", "pick", "training_rows", "works"]

WORDS = 16
"""Words of the training texts of heads and experts, which do not affect the cost of answers."""

EXPERT_ROWS, HEAD_ROWS = 15, 5
"""Rows of each label."""

PIECES = 5
"""Calls into which the largest case is split: each has its own ratio."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A call that is timed.

    Attributes:
        kind: The texts, ``lines`` or ``posts``.
        size: Texts of a call.
        rounds: Number of counted calls.
        large: Whether it measures throughput instead of latency.
    """

    kind: str
    size: int
    rounds: int
    large: bool = False

    @property
    def name(self) -> str:
        """Its name on the page."""
        size = self.size * self.rounds if self.large else self.size
        return f"{size:,} {self.kind if size > 1 else self.kind.removesuffix('s')}"


def cases(*, runs: int, texts: int, posts: int) -> list[Case]:
    """Return the cases of a backbone.

    Args:
        runs: Rounds of the cases in the middle; short ones have more, for their 99th percentile.
        texts: Lines of the largest case.
        posts: Posts of a batch call.
    """
    return [
        Case(kind="lines", size=1, rounds=20 * runs),
        Case(kind="posts", size=1, rounds=2 * runs),
        Case(kind="lines", size=8, rounds=2 * runs),
        Case(kind="lines", size=64, rounds=runs),
        Case(kind="posts", size=posts, rounds=-(-runs // 2)),
        Case(kind="lines", size=-(-texts // PIECES), rounds=PIECES, large=True),
    ]


def pick(kind: str) -> list[str]:
    """Return all texts of a kind, in a fixed random order."""
    found = lines() if kind == "lines" else [row.text for row in rows("train")]
    random.Random(0).shuffle(found)  # noqa: S311  (an order, no secret)
    return found


def works(case: Case, texts: Sequence[str]) -> list[Sequence[str]]:
    """Return the texts of each call, disjoint while there are enough; the first call warms up."""
    warm = min(case.size, 64)
    starts = (warm + n * case.size for n in range(case.rounds))
    return [
        texts[:warm],
        *([texts[(s + i) % len(texts)] for i in range(case.size)] for s in starts),
    ]


def training_rows(each: int) -> list[redhost.Row]:
    """Return short rows of every label: the first words of posts.

    Args:
        each: Number of rows of a label.
    """
    found: dict[str, dict[str, redhost.Row]] = {}
    for row in rows("train"):
        text = " ".join(row.text.split()[:WORDS])
        of_label = found.setdefault(row.label, {})
        if len(of_label) < each:
            of_label[text] = redhost.Row(text=text, label=row.label, domain=row.domain)
    return [row for of_label in found.values() for row in of_label.values()]
