"""Sets of labels as text: ``news|sport``, sorted, and ``none`` for the empty set.

This is their form in rows, answers and cards; it is parsed and written here, without torch.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

NONE = "none"
"""The empty set; also the answer to a declined text."""

BETWEEN = "|"
"""The separator of the labels in a set."""


RENAME = "'none' is the answer to a declined text. Rename the label in the data, e.g. to 'other'."
"""What to do with data that have a label of this name."""


def composed(cell: object) -> object:
    """Return a cell with its texts in Unicode's composed form, in which equal labels are equal."""
    if isinstance(cell, list):
        return [composed(x) for x in cell]
    return unicodedata.normalize("NFC", cell) if isinstance(cell, str) else cell


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


@dataclass(frozen=True, kw_only=True)
class Notation:
    """The notation of answers that are not a single label, in the rows of a file.

    Attributes:
        read: A cell and the row's text → the answer as text; None if it is invalid.
        expected: The error's description of a valid cell, formatted with field and text size.
        hint: The error's hint.
    """

    read: Callable[[object, str], str | None]
    expected: str
    hint: str


LABEL_SETS = Notation(
    read=lambda cell, _: read_label_set(cell),
    expected="labels in {field}: a list, or text such as a|b",
    hint="Of a text without any write [] or none; no label may be 'none' or have a '|'.",
)
"""How sets of labels are written in the rows of a file."""


def allowed(labels: Collection[str]) -> bool:
    """Return whether all labels are valid in a set."""
    return all(y and y != NONE and BETWEEN not in y for y in labels)


def _is_label(cell: object) -> bool:
    if isinstance(cell, float):
        return math.isfinite(cell)
    return isinstance(cell, (str, int)) and not isinstance(cell, bool)
