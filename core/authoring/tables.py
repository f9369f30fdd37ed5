"""People's own labelled data: JSON lines, CSV, Parquet, or standard input."""

from __future__ import annotations

import csv
import io
import json
import math
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ...registry.errors import UsageError
from ..rows import BackgroundRow, Row

__all__ = ["read_documents", "read_table", "read_texts"]

LONGEST = 2**20
"""Characters of a line; more is a file that lost its line ends."""


def read_table(
    source: str | Path,
    *,
    text_field: str = "text",
    label_field: str = "label",
    domain_field: str = "domain",
    numbers: bool = False,
) -> list[Row]:
    """Read labelled rows.

    Args:
        source: A ``.jsonl``, ``.csv`` or ``.parquet`` file, or ``-`` for JSON lines or CSV on
            standard input.
        text_field: Where the text stands.
        label_field: Where the label stands; numbers become their usual spelling.
        domain_field: Where the domain stands, where there is one.
        numbers: Whether labels have to be numbers, the targets of a regression.

    Raises:
        UsageError: If anything is wrong; the message names the line.
    """
    name = "standard input" if str(source) == "-" else str(source)
    fields = (text_field, label_field, domain_field)
    rows = []
    for where, cells in _cells(source, name):
        rows.append(_row(cells, fields, f"{name}, {where}"))
        if numbers and not _is_number(rows[-1].label):
            found = repr(rows[-1].label)[:40]
            raise UsageError(f"{name}, {where}", expected="a finite number", found=found)
    if not rows:
        raise UsageError(
            f"{name} has no rows", expected=f"rows with {text_field!r} and {label_field!r}"
        )
    return rows


def read_documents(
    source: str | Path, *, text_field: str = "text", document_field: str = "document"
) -> list[Row]:
    """Read texts to generate like; `domain` of a row names its document, where that is told.

    Args:
        source: As for `read_table`.
        text_field: Where the text stands.
        document_field: Where the name of the document stands that the text is from.

    Raises:
        UsageError: If anything is wrong; the message names the line.
    """
    name = "standard input" if str(source) == "-" else str(source)
    rows = []
    for where, cells in _cells(source, name):
        told = {**cells, "label": "-"}
        rows.append(_row(told, (text_field, "label", document_field), f"{name}, {where}"))
    if not rows:
        raise UsageError(f"{name} has no rows", expected=f"rows with {text_field!r}")
    return [Row(text=r.text, label="", domain=r.domain) for r in rows]


def read_texts(path: str | Path) -> list[BackgroundRow]:
    """Read unlabelled texts, one a line: a background card in the making.

    Raises:
        UsageError: If the file cannot be read, or has no texts.
    """
    lines = [x.strip() for x in _lines(path, str(path))]
    rows = [BackgroundRow(text=x) for x in dict.fromkeys(lines) if x]
    if not rows:
        raise UsageError(f"{path} has no texts", expected="one a line")
    return rows


def _cells(source: str | Path, name: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield where each row stands and its cells."""
    if str(source).endswith(".parquet"):
        yield from _parquet(Path(source), name)
        return
    lines = _lines(source, name)
    if str(source).endswith(".csv") or (str(source) == "-" and not _is_json(lines)):
        yield from _csv(lines, name)
    else:
        yield from _json(lines, name)


def _lines(source: str | Path, name: str) -> list[str]:
    try:
        data = sys.stdin.buffer.read() if str(source) == "-" else Path(source).read_bytes()
    except OSError as e:
        raise UsageError(f"cannot read {name}", found=e.strerror or str(e)) from e
    lines = []
    for number, raw in enumerate(io.BytesIO(data), start=1):
        if len(raw) > LONGEST:
            raise UsageError(
                f"{name}, line {number} is too long",
                expected=f"at most {LONGEST:,} bytes",
                found=f"{len(raw):,}",
            )
        try:
            lines.append(raw.decode("utf-8-sig" if number == 1 else "utf-8"))
        except UnicodeDecodeError as e:
            raise UsageError(
                f"{name}, line {number}",
                expected="UTF-8",
                found=f"byte 0x{raw[e.start]:02x} at column {e.start + 1}",
                hint="Convert the file, e.g. with iconv -t utf-8.",
            ) from e
    return lines


def _is_json(lines: list[str]) -> bool:
    return next((x.lstrip().startswith("{") for x in lines if x.strip()), True)


def _json(lines: list[str], name: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            cells = json.loads(line)
        except (ValueError, RecursionError) as e:
            raise UsageError(
                f"{name}, line {number}", expected="a JSON object", found=str(e)
            ) from e
        if not isinstance(cells, dict):
            raise UsageError(
                f"{name}, line {number}", expected="a JSON object", found=type(cells).__name__
            )
        yield f"line {number}", cells


def _csv(lines: list[str], name: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    reader = csv.DictReader(lines)
    try:
        for cells in reader:
            yield f"line {reader.line_num}", {k: v for k, v in cells.items() if v is not None}
    except csv.Error as e:
        raise UsageError(f"{name}, line {reader.line_num}", found=str(e)) from e


def _parquet(path: Path, name: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    try:
        import pyarrow.parquet as parquet  # type: ignore[import-not-found]  # noqa: PLR0402
    except ImportError as e:
        raise UsageError(f"cannot read {name}", hint="pip install pyarrow") from e
    try:
        table = parquet.read_table(path).to_pylist()
    except (OSError, ValueError) as e:
        raise UsageError(f"cannot read {name}", found=str(e).splitlines()[0]) from e
    for number, cells in enumerate(table, start=1):
        yield f"row {number}", cells


def _is_number(label: str) -> bool:
    try:
        return math.isfinite(float(label))
    except ValueError:
        return False


def _row(cells: Mapping[str, Any], fields: tuple[str, str, str], where: str) -> Row:
    text, label, domain = (cells.get(f) for f in fields)
    if not isinstance(text, str) or not text.strip():
        found = "no such field" if text is None else repr(text)[:40]
        raise UsageError(where, expected=f"a text in {fields[0]!r}", found=found)
    if isinstance(label, float) and not math.isfinite(label):
        raise UsageError(where, expected=f"a finite label in {fields[1]!r}", found=str(label))
    if isinstance(label, bool) or not isinstance(label, (str, int, float)) or label == "":
        found = "no such field" if label is None else repr(label)[:40]
        raise UsageError(where, expected=f"a label in {fields[1]!r}", found=found)
    return Row(text=text, label=str(label), domain=None if domain is None else str(domain))
