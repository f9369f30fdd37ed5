"""An author's data: files read as rows, and rows set aside before anything is trained.

`read_table`, `read_documents` and `read_texts` read files; `split_rows` and `split_documents` cut
rows into what the expert learns from, what its training stops on, and what its card shows.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from ...registry.errors import UsageError
from ..bus.tasks import CLASSIFICATION, Head, Task, Unit
from ..types import BackgroundRow, CardRow, Row

CARD_SHARE, CARD_ROWS, VALID_SHARE = 0.25, 512, 0.1
CARD_PASSAGES = 32
"""Most passages of each half of a card, where text is generated."""
LONGEST_PASSAGE = 800
"""Characters of a passage: some 200 tokens."""
LONGEST_LINE = 2**20
"""Characters of a line; more is a file that lost its line ends."""


@dataclass(frozen=True, kw_only=True)
class DataSplits:
    """An author's rows, each in one split; equal texts are never in two.

    Attributes:
        train: What the expert learns from.
        valid: What its training stops early on.
        fit: What the card shows for routers to be trained on.
        gate: What the card shows for compositions to be judged on.
    """

    train: tuple[Row, ...]
    valid: tuple[Row, ...]
    fit: tuple[Row, ...]
    gate: tuple[Row, ...]

    @property
    def rows(self) -> tuple[Row, ...]:
        """All of them."""
        return (*self.train, *self.valid, *self.fit, *self.gate)

    @property
    def card_rows(self) -> list[CardRow]:
        """The rows of a card of texts, in order."""
        shown = (("fit", self.fit), ("gate", self.gate))
        return [CardRow(text=r.text, label=r.label, part=p) for p, rows in shown for r in rows]


def read_table(
    source: str | Path,
    *,
    text_field: str = "text",
    label_field: str = "label",
    domain_field: str = "domain",
    head: Head = CLASSIFICATION.head,
) -> list[Row]:
    """Read labelled rows.

    Args:
        source: A ``.jsonl``, ``.csv`` or ``.parquet`` file, or ``-`` for JSON lines or CSV on
            standard input.
        text_field: Where the text stands.
        label_field: Where the label stands; numbers become their usual spelling.
        domain_field: Where the domain stands, where there is one.
        head: What labels have to be answers of.

    Raises:
        UsageError: If anything is wrong; the message names the line.
    """
    return _read(source, (text_field, label_field, domain_field), head=head)


def read_rows(
    source: str | Path,
    *,
    task: Task,
    text_field: str = "text",
    label_field: str = "label",
    document_field: str = "document",
) -> list[Row]:
    """Read rows as the task has them: labelled texts (`read_table`), or `read_documents`."""
    if task.unit is Unit.TOKEN:
        return read_documents(source, text_field=text_field, document_field=document_field)
    return read_table(source, text_field=text_field, label_field=label_field, head=task.head)


def read_documents(
    source: str | Path, *, text_field: str = "text", document_field: str = "document"
) -> list[Row]:
    """Read texts to generate like; `domain` of a row names its document, where that is known.

    Args:
        source: As for `read_table`.
        text_field: Where the text stands.
        document_field: Where the name of the document stands that the text is from.

    Raises:
        UsageError: If anything is wrong; the message names the line.
    """
    return _read(source, (text_field, None, document_field))


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


_Fields = tuple[str, str | None, str]
"""Where a row's text, its label (None where it has none) and its domain stand."""


def _read(source: str | Path, fields: _Fields, *, head: Head | None = None) -> list[Row]:
    name = "standard input" if str(source) == "-" else str(source)
    rows = []
    for where, cells in _cells(source, name):
        row = _row(cells, fields, f"{name}, {where}")
        if head is not None and (expected := head.expected(row.label)):
            raise UsageError(f"{name}, {where}", expected=expected, found=repr(row.label)[:40])
        rows.append(row)
    if not rows:
        needed = " and ".join(repr(f) for f in fields[:2] if f is not None)
        raise UsageError(f"{name} has no rows", expected=f"rows with {needed}")
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
        if len(raw) > LONGEST_LINE:
            raise UsageError(
                f"{name}, line {number} is too long",
                expected=f"at most {LONGEST_LINE:,} bytes",
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


def _row(cells: Mapping[str, Any], fields: _Fields, where: str) -> Row:
    """Return a row's cells as text, label and domain, or refuse them."""
    text, label, domain = ("" if f is None else cells.get(f) for f in fields)
    if not isinstance(text, str) or not text.strip():
        found = "no such field" if text is None else repr(text)[:40]
        raise UsageError(where, expected=f"a text in {fields[0]!r}", found=found)
    if isinstance(label, float) and not math.isfinite(label):
        raise UsageError(where, expected=f"a finite label in {fields[1]!r}", found=str(label))
    bad = isinstance(label, bool) or not isinstance(label, (str, int, float)) or label == ""
    if bad and fields[1] is not None:
        found = "no such field" if label is None else repr(label)[:40]
        raise UsageError(where, expected=f"a label in {fields[1]!r}", found=found)
    return Row(text=text, label=str(label), domain=None if domain is None else str(domain))


def split_rows(
    rows: Sequence[Row], *, valid: Sequence[Row] | None = None, task: Task = CLASSIFICATION
) -> DataSplits:
    """Set rows aside before anything is trained, by the hash of their text.

    A quarter, 512 rows at most, goes to the card, half `fit` and half `gate`; a tenth of the rest
    to validation where none is given. Every label keeps a row to train on.

    Args:
        rows: The author's rows.
        valid: Validation rows of the author's own.
        task: What the rows are of: whole documents are split where text is generated.

    Raises:
        UsageError: If there are no two labels, or a validation text stands among the rows too.
    """
    if task.unit is Unit.TOKEN:
        return split_documents(rows, valid=valid)
    labels = {r.label for r in rows}
    if len(labels) < 2:  # noqa: PLR2004
        raise UsageError(
            "the data has one label only" if labels else "the data has no labels",
            expected="at least two",
            found=", ".join(labels) or "none",
        )
    both = {r.text for r in rows} & {r.text for r in valid or ()}
    if both:
        raise UsageError(
            "validation rows stand in the training data too", found=repr(min(both))[:60]
        )
    ordered = sorted(rows, key=lambda r: (_digest(r.text), r.label))
    groups = task.head.groups([r.label for r in ordered])
    # The first row of each label, as the last to be set wins; these stay for training.
    first = {g: r.text for g, r in zip(reversed(groups), reversed(ordered), strict=True)}
    taught = set(first.values())
    texts = list(dict.fromkeys(r.text for r in ordered if r.text not in taught))
    card = texts[: min(CARD_ROWS, int(CARD_SHARE * len(rows)))]
    fit, gate, rest = set(card[::2]), set(card[1::2]), texts[len(card) :]
    chosen = set(rest[: int(VALID_SHARE * len(rest))]) if valid is None else set[str]()

    def rows_of(among: set[str]) -> tuple[Row, ...]:
        return tuple(r for r in ordered if r.text in among)

    return DataSplits(
        train=tuple(r for r in ordered if r.text not in fit | gate | chosen),
        valid=rows_of(chosen) if valid is None else tuple(valid),
        fit=rows_of(fit)[:256],
        gate=rows_of(gate)[:256],
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def split_documents(rows: Sequence[Row], *, valid: Sequence[Row] | None = None) -> DataSplits:
    """Set whole documents aside, by the hash of their names.

    A quarter of them is for the card, a tenth to stop early on.

    Args:
        rows: Texts; `domain` names the document a text is from, None makes it one of its own.
        valid: Validation texts of the author's own.

    Raises:
        UsageError: If there are fewer than five documents, or those to learn from have no passage
            that those set aside have not.
    """
    by_name: dict[str, list[str]] = {}
    for row in rows:
        by_name.setdefault(row.text if row.domain is None else row.domain, []).append(row.text)
    names = sorted(by_name, key=_digest)
    if len(names) < 5:  # noqa: PLR2004  (one for every part, and two to learn from)
        raise UsageError(
            "too few documents to set any aside", expected="at least 5", found=str(len(names))
        )
    card, stop = max(1, len(names) // 8), max(1, len(names) // 10) if valid is None else 0
    cuts = (card, 2 * card, 2 * card + stop, len(names))
    known: set[str] = set()

    def fresh(texts: Iterable[str]) -> tuple[Row, ...]:
        """Return the passages of texts that no split has yet."""
        new = dict.fromkeys(p for text in texts for p in _passages(text) if p not in known)
        known.update(new)
        return tuple(Row(text=p, label="") for p in new)

    fit, gate, validation, train = (
        fresh(text for name in names[start:end] for text in by_name[name])
        for start, end in pairwise((0, *cuts))
    )
    if not train:
        raise UsageError(
            "the documents say the same",
            expected="passages to learn from that do not stand in those set aside",
            found=f"{len(known)} different ones in {len(names)} documents",
        )
    if valid is not None:
        validation = fresh(row.text for row in valid)
    return DataSplits(train=train, valid=validation, fit=_spread(fit), gate=_spread(gate))


def _passages(text: str) -> list[str]:
    """Cut a text at line ends, else between words; no passage is over `LONGEST_PASSAGE`.

    What is lost is the white space between two.
    """
    passages, rest = [], text.strip("\n")
    while len(rest) > LONGEST_PASSAGE:
        cut = (
            max(rest.rfind("\n", 0, LONGEST_PASSAGE), 0)
            or max(rest.rfind(" ", 0, LONGEST_PASSAGE), 0)
            or LONGEST_PASSAGE
        )
        passages.append(rest[:cut])
        rest = rest[cut:].strip("\n")
    return [t for t in (*passages, rest) if t.strip()]


def _spread(rows: tuple[Row, ...]) -> tuple[Row, ...]:
    """Return at most so many rows, evenly spread over them."""
    step = -(-len(rows) // CARD_PASSAGES)
    return rows[:: max(step, 1)]
