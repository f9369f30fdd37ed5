"""Shared types: text encoders, progress, and rows with the files that contain them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import msgspec

from ..registry.errors import InputTypeError, UsageError

if TYPE_CHECKING:  # files of rows are read before torch is loaded
    from torch import Tensor

MAX_SEED = 2**63 - 1
"""The largest seed of anything random."""

Encode = Callable[[Sequence[str]], "Tensor"]
"""Texts → h ``(N, D)``, usually through the feature cache."""


Progress = Callable[[int, int], None]
"""Called with (done, total) whenever progress is made."""


class StagedProgress(ABC):
    """A `Progress` that also receives the current stage of the work; see `in_stage`."""

    @abstractmethod
    def __call__(self, done: int, total: int) -> None:
        """Record progress of work without a stage."""

    @abstractmethod
    def stage(self, name: str, note: str = "") -> Progress:
        """Return the function to call during a stage of the work, e.g. ``epochs``.

        Args:
            name: Its name; a stage that is entered again has more work to do.
            note: A note to show with it, e.g. an accuracy.
        """


def in_stage(progress: Progress | None, name: str, note: str = "") -> Progress | None:
    """Return the function to call during a stage; a plain `Progress` is returned unchanged."""
    return progress.stage(name, note) if isinstance(progress, StagedProgress) else progress


RowT = TypeVar("RowT", bound=msgspec.Struct)


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One labelled text; `domain` is the id of the expert whose domain it belongs to."""

    text: str
    label: str
    domain: str | None = None


class CardRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row of a `texts` card; routers are trained on `fit`, harm is measured on `gate`."""

    text: str
    label: str
    part: str


class FoundSpan(msgspec.Struct, frozen=True, kw_only=True):
    """A predicted span.

    Attributes:
        start: Its first character.
        end: The character after its last.
        label: Its label.
        text: The text of the span.
        probability: The mean over its words, 0–1.
    """

    start: int
    end: int
    label: str
    text: str
    probability: float

    def __str__(self) -> str:
        """Return it as commands print it, e.g. ``'Ada' person (0–3)``."""
        return f"{self.text!r} {self.label} ({self.start}–{self.end})"


class BackgroundRow(msgspec.Struct, frozen=True, kw_only=True):
    """One unlabelled text of a background card.

    `domain` is the id of the expert whose domain contains the text, if there is one. That expert
    may respond to the text, and the backbone column does not claim it while the expert is composed.
    None: the text is outside every expert's domain.
    """

    text: str
    domain: str | None = None


ItemT = TypeVar("ItemT")


def as_list(given: ItemT | Iterable[ItemT], kind: type[ItemT], what: str) -> list[ItemT]:
    """Return a single item, or the items of any iterable, as a list.

    Args:
        given: A text or a row, or any iterable of them, e.g. a generator or a column of a table.
        kind: The required type of each item.
        what: The name of an item in messages, e.g. ``text``.

    Raises:
        InputTypeError: If it is anything else, including any mapping or table.
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
            other = f"{type(item).__name__} at place {place}"
            raise InputTypeError(f"not only {what}s", expected=expected, found=other)
    return items


def parse_rows(data: bytes, kind: type[RowT], *, source: str) -> list[RowT]:
    """Parse JSON lines.

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
    """Serialise rows as JSON lines."""
    return b"".join(msgspec.json.encode(row) + b"\n" for row in rows)


def percent(share: float) -> str:
    """Return a share, 0–1, as a whole percentage that is 0 or 100 only where the share is."""
    if 0 < share < 0.005:  # noqa: PLR2004  (it would be rounded to 0)
        return "under 1%"
    return "over 99%" if 0.995 <= share < 1 else f"{share:.0%}"  # noqa: PLR2004
