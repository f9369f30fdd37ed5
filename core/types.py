"""How texts become what a bus reads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import msgspec

from ..registry.errors import InputTypeError, UsageError

if TYPE_CHECKING:  # files of rows are read before torch is loaded
    from torch import Tensor

Encode = Callable[[Sequence[str]], "Tensor"]
"""Texts → h ``(N, D)``, usually through the feature cache."""


Progress = Callable[[int, int], None]
"""Called with (done, in all), as often as there is something new to say."""


class StagedProgress(ABC):
    """A `Progress` that also learns what is under way; see `in_stage`."""

    @abstractmethod
    def __call__(self, done: int, total: int) -> None:
        """Take note of work that has no name."""

    @abstractmethod
    def stage(self, name: str, note: str = "") -> Progress:
        """Return what is called for a stage of the work, e.g. ``epochs``.

        Args:
            name: Its name; a stage may be entered again, and then has more to do.
            note: What to show beside it, e.g. an accuracy.
        """


def in_stage(progress: Progress | None, name: str, note: str = "") -> Progress | None:
    """Return what to call in a stage of the work: a plain `Progress` is called as ever."""
    return progress.stage(name, note) if isinstance(progress, StagedProgress) else progress


RowT = TypeVar("RowT", bound=msgspec.Struct)


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One labelled text; `domain` is the id of the expert whose slice it belongs to."""

    text: str
    label: str
    domain: str | None = None


class CardRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row of a `texts` card; the router sees `fit`, harm is judged on `gate`."""

    text: str
    label: str
    part: str


class BackgroundRow(msgspec.Struct, frozen=True, kw_only=True):
    """One unlabelled text of a background card.

    `domain` is the id of the expert whose slice the text lies in, where there is such a slice:
    that expert need not leave the text alone, and the backbone column does not claim it while
    the expert is composed. None: no expert's business.
    """

    text: str
    domain: str | None = None


ItemT = TypeVar("ItemT")


def as_list(given: ItemT | Iterable[ItemT], kind: type[ItemT], what: str) -> list[ItemT]:
    """Return one item, or those of any iterable, as a list.

    Args:
        given: A text or a row, or any iterable of them, e.g. a generator or a column of a table.
        kind: What each item has to be.
        what: What one is called, e.g. ``text``.

    Raises:
        InputTypeError: If it is anything else; a mapping or a table is, whatever its keys are.
    """
    expected = f"one {what}, or an iterable of {what}s"
    if isinstance(given, kind):
        return [given]
    flat = not isinstance(given, Mapping) and getattr(given, "ndim", 1) == 1
    if not flat or not isinstance(given, Iterable):
        raise InputTypeError(f"no {what}s", expected=expected, found=type(given).__name__)
    items = list(given)
    for place, item in enumerate(items):
        if not isinstance(item, kind):
            found = f"{type(item).__name__} at place {place}"
            raise InputTypeError(f"not only {what}s", expected=expected, found=found)
    return items


def parse_rows(data: bytes, kind: type[RowT], *, source: str) -> list[RowT]:
    """Read JSON lines.

    Raises:
        UsageError: If a line is not such a row; the message names the line.
    """
    decoder = msgspec.json.Decoder(kind)
    rows = []
    for number, line in enumerate(data.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            rows.append(decoder.decode(line))
        except (msgspec.DecodeError, UnicodeDecodeError) as e:
            fields = ", ".join(kind.__struct_fields__)
            raise UsageError(
                f"{source}, line {number}", expected=f"a JSON object with {fields}", found=str(e)
            ) from e
    return rows


def write_rows(rows: Iterable[msgspec.Struct]) -> bytes:
    """Write JSON lines."""
    return b"".join(msgspec.json.encode(row) + b"\n" for row in rows)
