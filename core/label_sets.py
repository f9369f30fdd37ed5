"""Sets of labels as text: ``news|sport``, sorted, and ``none`` for the empty set.

Rows, answers and cards hold them so; here they are read and written, without torch.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

NONE = "none"
"""No label holds; also the answer to a text that is declined."""

BETWEEN = "|"
"""Stands between the labels of a set."""


def join_labels(labels: Iterable[str]) -> str:
    """Return a set of labels as text."""
    return BETWEEN.join(sorted({*labels})) or NONE


def split_labels(answer: str) -> tuple[str, ...]:
    """Return the labels of a set that is written as text, in its order."""
    return () if answer == NONE else tuple(answer.split(BETWEEN))


def read_label_set(cell: object) -> str | None:
    """Return what a file has for a row's labels as text; None if it is no set of labels.

    Args:
        cell: A list of labels, or text with ``|`` between them in any order. No labels are an empty
            list or ``none``: a cell without anything may as well be one that somebody forgot.
    """
    if isinstance(cell, str):
        cell = [] if cell.strip() == NONE else [part.strip() for part in cell.split(BETWEEN)]
    if not isinstance(cell, list):
        return None
    labels = [str(x) for x in cell if _is_label(x)]
    good = len(labels) == len(cell) and allowed(labels)
    return join_labels(labels) if good else None


def allowed(labels: Collection[str]) -> bool:
    """Say whether each of some labels can be one of a set."""
    return all(y and y != NONE and BETWEEN not in y for y in labels)


def _is_label(cell: object) -> bool:
    if isinstance(cell, float):
        return math.isfinite(cell)
    return isinstance(cell, (str, int)) and not isinstance(cell, bool)
