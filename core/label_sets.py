r"""Sets of labels as text: ``news|sport``, sorted, and ``none`` for the empty set.

This is their form in rows, answers and cards; it is parsed and written here, without torch. In a
label ``|`` is written ``\|``, and a backslash twice; ``\none`` is the set of the label ``none``.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass

NONE = "none"
"""How the empty set is written, and the answer to a declined text."""

DECLINED = ""
"""The output of a bus that is written `NONE`. No label is empty; one may be called ``none``."""

BETWEEN = "|"
"""The separator of the labels in a set."""

_ALONE = "\\" + NONE

_ELEMENT = re.compile(r"(?:^|\|)((?:\\[|\\]|[^|])*)")


def composed(cell: object) -> object:
    """Return a cell with its texts in Unicode's composed form, in which equal labels are equal."""
    if isinstance(cell, list):
        return [composed(x) for x in cell]
    return unicodedata.normalize("NFC", cell) if isinstance(cell, str) else cell


def join_labels(labels: Iterable[str]) -> str:
    """Return a set of labels as text."""
    return join_parts(sorted({*labels}))


def join_parts(parts: Iterable[str]) -> str:
    """Return the elements of an answer as text, in their order."""
    text = BETWEEN.join(re.sub(r"([|\\])", r"\\\1", part) for part in parts)
    return _ALONE if text == NONE else text or NONE


def split_labels(answer: str) -> tuple[str, ...]:
    """Return the labels of a set in text form, in its order."""
    if answer in {NONE, _ALONE}:
        return () if answer == NONE else (NONE,)
    return tuple(re.sub(r"\\([|\\])", r"\1", part) for part in _ELEMENT.findall(answer))


def read_label_set(cell: object) -> str | None:
    """Return the labels of a row in a file in text form; None if the cell is not a label set.

    Args:
        cell: A list of labels, or text with ``|`` between them in any order. An empty list or
            ``none`` is the empty set; an empty cell is not, as it may have been forgotten.
    """
    if isinstance(cell, str):
        cell = [part.strip() for part in split_labels(cell.strip())]
    if not isinstance(cell, list):
        return None
    labels = [str(x) for x in cell if _is_label(x)]
    return join_labels(labels) if len(labels) == len(cell) and all(labels) else None


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
    hint="Of a text without any write [] or none.",
)
"""How sets of labels are written in the rows of a file."""


def _is_label(cell: object) -> bool:
    if isinstance(cell, float):
        return math.isfinite(cell)
    return isinstance(cell, (str, int)) and not isinstance(cell, bool)
