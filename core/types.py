"""How texts become what a bus reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import msgspec
from torch import Tensor

from ..registry.errors import UsageError

Encode = Callable[[Sequence[str]], Tensor]
"""Texts → h ``(N, D)``, usually through the feature cache."""


Progress = Callable[[int, int], None]
"""Called with (done, in all), as often as there is something new to say."""


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
