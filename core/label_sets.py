"""Sets of labels as text: ``news|sport``, sorted, and ``none`` for the empty set.

This is their form in rows, answers and cards; it is parsed and written here, without torch.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

NONE = "none"
"""The empty set; also the answer to a declined text."""

BETWEEN = "|"
"""The separator of the labels in a set."""


def join_labels(labels: Iterable[str]) -> str:
    """Return a set of labels as text."""
    return BETWEEN.join(sorted({*labels})) or NONE


def split_labels(answer: str) -> tuple[str, ...]:
    """Return the labels of a set in text form, in its order."""
    return () if answer == NONE else tuple(answer.split(BETWEEN))


def read_label_set(cell: object) -> str | None:
    """Return the labels of a row in a file in text form; None if the cell is not a label set.

    Args:
        cell: A list of labels, or text with ``|`` between them in any order. An empty list or
            ``none`` is the empty set; an empty cell is not, as it may have been forgotten.
    """
    if isinstance(cell, str):
        cell = [] if cell.strip() == NONE else [part.strip() for part in cell.split(BETWEEN)]
    if not isinstance(cell, list):
        return None
    labels = [str(x) for x in cell if _is_label(x)]
    good = len(labels) == len(cell) and allowed(labels)
    return join_labels(labels) if good else None


def allowed(labels: Collection[str]) -> bool:
    """Return whether all labels are valid in a set."""
    return all(y and y != NONE and BETWEEN not in y for y in labels)


def _is_label(cell: object) -> bool:
    if isinstance(cell, float):
        return math.isfinite(cell)
    return isinstance(cell, (str, int)) and not isinstance(cell, bool)
