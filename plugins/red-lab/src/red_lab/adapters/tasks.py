"""Tasks of two labels each, on real texts from an installable package.

Newsgroup posts, newswire of 1987, tweets, Slovene comments and lines of a television series, read
by `red_lab.text.corpora`, in pairs of labels that are hard to distinguish. Labels are disjoint.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cache

import redhost
from red_lab.text.corpora import CORPORA
from redhost.core.types import BackgroundRow

__all__ = ["TASKS", "background", "rows"]

TASKS: Mapping[str, tuple[str, str, str]] = {
    "graphics": ("newsgroups", "comp.graphics", "comp.windows.x"),
    "hardware": ("newsgroups", "comp.sys.ibm.pc.hardware", "comp.sys.mac.hardware"),
    "software": ("newsgroups", "comp.os.ms-windows.misc", "sci.crypt"),
    "vehicles": ("newsgroups", "rec.autos", "rec.motorcycles"),
    "games": ("newsgroups", "rec.sport.baseball", "rec.sport.hockey"),
    "trade-in": ("newsgroups", "misc.forsale", "sci.electronics"),
    "policy": ("newsgroups", "talk.politics.guns", "talk.politics.misc"),
    "beliefs": ("newsgroups", "alt.atheism", "talk.religion.misc"),
    "creeds": ("newsgroups", "soc.religion.christian", "talk.politics.mideast"),
    "science": ("newsgroups", "sci.med", "sci.space"),
    "companies": ("newswire", "acq", "earn"),
    "rates": ("newswire", "interest", "money-fx"),
    "growth": ("newswire", "cpi", "gnp"),
    "commerce": ("newswire", "ship", "trade"),
    "softs": ("newswire", "coffee", "sugar"),
    "grains": ("newswire", "cocoa", "grain"),
    "resources": ("newswire", "crude", "gold"),
    "reserves": ("newswire", "money-supply", "reserves"),
    "campaign": ("sources", "HillaryClinton", "realDonaldTrump"),
    "slovene-news": ("sources", "Gospodarstvo", "Politika"),
    "slovene-rest": ("sources", "Drugo", "Šport"),
    "friends-a": ("sources", "Chandler", "Joey"),
    "friends-b": ("sources", "Monica", "Rachel"),
    "friends-c": ("sources", "Phoebe", "Ross"),
}
"""Task → corpus and labels."""

LEARN, JUDGE = 100, 12
"""Maximum number of training and of test texts of a label; those of the smallest hash."""

OTHERS = 96
"""Texts of the backbone's background card."""


def rows(part: str, *, learn: int = LEARN, judge: int = JUDGE) -> dict[str, list[redhost.Row]]:
    """Return the rows of every task.

    Args:
        part: ``train`` or ``test``; test rows are later in time, or were held out by hash.
        learn: Maximum number of training rows of a label.
        judge: Maximum number of test rows of a label.
    """
    most = learn if part == "train" else judge
    return {
        task: [
            redhost.Row(text=row.text, label=row.label, domain=task)
            for label in labels
            for row in _of(corpus, part, label)[:most]
        ]
        for task, (corpus, *labels) in TASKS.items()
    }


def background() -> Sequence[BackgroundRow]:
    """Return texts outside every task's domain: excerpts of books and tales."""
    return list(CORPORA["newswire"].background())[:OTHERS]


def _of(corpus: str, part: str, label: str) -> list[redhost.Row]:
    return [r for r in _ordered(corpus, part) if r.label == label]


@cache
def _ordered(corpus: str, part: str) -> tuple[redhost.Row, ...]:
    found = CORPORA[corpus].rows("train" if part == "train" else "test", False)
    return tuple(sorted(found, key=lambda r: hashlib.sha256(r.text.encode()).hexdigest()))
