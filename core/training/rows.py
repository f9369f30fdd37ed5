"""An author's data: read files as rows, without torch, so that errors are reported at once.

`read_table` and `read_texts` each read one kind of file. `read_rows` reads the
kind that a task needs. `read_cells` reads the rows of any file one by one, however many there are.
"""

from __future__ import annotations

import codecs
import csv
import importlib
import json
import logging
import math
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...registry.errors import UsageError
from ...registry.package.checked import unique_keys
from ...registry.package.forms import TASKS
from ..label_sets import LABEL_SETS, Notation, composed
from ..types import BackgroundRow, Row

if TYPE_CHECKING:
    from ..bus.head import Head

log = logging.getLogger("redhost")

LONGEST_LINE = 2**20
"""Most bytes in a line; a longer one suggests a file without line ends."""

BATCH = 1024
"""Rows of a Parquet file that are read at a time."""

SHOWN = 8
"""Most fields that a message lists."""

DELIMITERS = {".csv": ",", ".tsv": "\t", ".tab": "\t"}
"""The delimiter of a file's cells, by its suffix."""

JSON = frozenset({".jsonl", ".json", ".ndjson"})

ONE_A_LINE = "Write one object a line, or a table: .csv, .tsv, .parquet."

PACKED = {
    b"\x1f\x8b": ("a gzip file", "Unpack it first, e.g. with gunzip."),
    b"PK\x03\x04": ("a zip archive or a workbook", "Unpack it, or save its table as CSV in UTF-8."),
    b"PAR1": ("a Parquet file", "Give it a name that ends in .parquet."),
}
"""First bytes of files that are not lines of text → what they are, and a hint."""

MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",  # before UTF-16's, which is a prefix of it
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
"""Byte order marks of other encodings."""

FAULTS = {
    "new-line": (
        "line ends \\n or \\r\\n",
        "a \\r alone",
        "Save it with those.",
    ),
    "field larger": (
        f"at most {csv.field_size_limit():,} characters in a cell",
        "more",
        "Close every double quote; longer texts fit into JSON lines and Parquet.",
    ),
    "": ("cells whose double quotes are closed", "", "Write a double quote within a text twice."),
}
"""Beginnings of csv's error messages → what was expected, what was found (if that is clearer than
csv's message), and a hint."""


def read_table(
    source: str | Path,
    *,
    text_field: str = "text",
    label_field: str = "label",
    domain_field: str = "domain",
    head: Head | None = None,
) -> list[Row]:
    """Read labelled rows.

    Args:
        source: A ``.jsonl``, ``.csv``, ``.tsv`` or ``.parquet`` file. For other suffixes, and for
            ``-`` (standard input), the format is detected from the first line.
        text_field: Field of the text.
        label_field: Field of the label. Numbers are converted to text, white space around a label
            is removed, and its characters are composed (NFC).
        domain_field: Field of the domain, if there is one.
        head: The head against which labels are checked; None accepts any label. A label set is a
            list, or text separated by ``|``; other heads have a notation of their own.

    Raises:
        UsageError: If anything is wrong; the message names the line.
    """
    notation = None if head is None else head.notation
    name, rows = _read(source, (text_field, label_field, domain_field), notation=notation)
    return [row for _, row in _answers(rows, name, head)]


def read_rows(
    source: str | Path,
    *,
    task: str,
    text_field: str = "text",
    label_field: str = "label",
    domain_field: str | None = None,
    document_field: str = "document",
) -> list[Row]:
    """Read rows for a task: labelled texts, or documents where texts are continued.

    Args:
        source: As for `read_table`.
        task: The task's name in manifests.
        text_field: Field of the text.
        label_field: Field of the label.
        domain_field: Field of the domain, which every row must then have. By default it is
            ``domain``, which rows may lack.
        document_field: Field of the document's name, used as the domain where texts are continued.

    Raises:
        UsageError: If anything is wrong; the message names the line.
    """
    if task not in TASKS or TASKS[task].head not in OWN:  # a plugin's
        from ..plugins.manager import Plugins

        Plugins().task(task, resolution=1.0)
    spec = TASKS[task]
    domain = domain_field or (document_field if spec.generates else "domain")
    fields = (text_field, None if spec.generates else label_field, domain)
    notation = _notation(spec.head)
    name, rows = _read(source, fields, owned=domain_field is not None, notation=notation)
    if notation is not None or spec.generates or spec.head == "softmax":
        return [row for _, row in rows]
    from ..tasks import HEADS  # imports torch, so only after all rows were read

    return [row for _, row in _answers(rows, name, HEADS[spec.head]())]


def read_texts(path: str | Path) -> list[BackgroundRow]:
    """Read unlabelled texts, one per line, for a background card.

    Raises:
        UsageError: If the file cannot be read, or has no texts.
    """
    lines = (x.strip() for x in _lines(path, str(path)))
    rows = [BackgroundRow(text=x) for x in dict.fromkeys(lines) if x]
    if not rows:
        raise UsageError(f"{path} has no texts", expected="one a line")
    return rows


OWN: Mapping[str, Notation | None] = {
    "softmax": None,
    "vocabulary": None,
    "number": None,
    "sigmoid": LABEL_SETS,
}
"""Notations by name of redhost's own heads."""


def _notation(head: str) -> Notation | None:
    """Return a head's notation; those of redhost's own are known without torch."""
    if head in OWN:
        return OWN[head]
    from ..tasks import HEADS

    return HEADS[head].notation


_Fields = tuple[str, str | None, str]
"""Fields of a row's text, its label (None if rows have none) and its domain."""


def _read(
    source: str | Path, fields: _Fields, *, owned: bool = False, notation: Notation | None = None
) -> tuple[str, list[tuple[str, Row]]]:
    """Return the name of a source in messages, and its rows, each with its position.

    Args:
        source: The file.
        fields: Its fields.
        owned: Whether every row must have a field for its domain.
        notation: The notation of answers that are not a single label.
    """
    name = "standard input" if str(source) == "-" else str(source)
    rows, changed = list[tuple[str, Row]](), 0
    for where, given in _cells(source, name):
        cells = {n: composed(cell) if n == fields[1] else cell for n, cell in given.items()}
        changed += cells != given
        row = _row(cells, fields, f"{name}, {where}", owned=owned, notation=notation)
        rows.append((where, row))
    if changed:
        log.warning("%s: %d labels are read in Unicode's composed form (NFC)", name, changed)
    if not rows:
        needed = " and ".join(repr(f) for f in fields[:2] if f is not None)
        raise UsageError(
            f"{name} has no rows",
            expected=f"rows with {needed}",
            hint="Write a JSON object a line, or CSV with these columns.",
        )
    return name, rows


def _answers(
    rows: list[tuple[str, Row]], name: str, head: Head | None
) -> Iterator[tuple[str, Row]]:
    """Yield rows, and refuse labels that are not valid answers of a head."""
    for where, row in rows:
        if head is not None and (expected := head.expected(row.label)):
            raise UsageError(f"{name}, {where}", expected=expected, found=repr(row.label)[:40])
        yield where, row


def read_cells(source: str | Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the position of each row of a file, e.g. ``line 3``, and its cells by field.

    Rows are read one at a time, so a file may be larger than memory.

    Args:
        source: As for `read_table`.

    Raises:
        UsageError: If the file cannot be read; the message names the line.
    """
    return _cells(source, "standard input" if str(source) == "-" else str(source))


def text_of(cells: Mapping[str, Any], field: str, where: str) -> str:
    """Return a row's text.

    Args:
        cells: The row's cells.
        field: Field of the text.
        where: The row, for the message.

    Raises:
        UsageError: If the row has no text.
    """
    text = cells.get(field)
    if not isinstance(text, str) or not text.strip():
        raise _missing(cells, where, field, "text", text)
    return text


def _cells(source: str | Path, name: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    suffix = Path(source).suffix.lower()
    if suffix == ".parquet":
        return _parquet(Path(source), name)
    lines = _lines(source, name)
    head = list[str]()
    for line in lines:
        head.append(line)
        if line.strip():
            break
    first, lines = head[-1] if head else "{", chain(head, lines)
    if suffix in JSON or (suffix not in DELIMITERS and first.lstrip().startswith("{")):
        return _json(lines, name)
    return _csv(lines, name, DELIMITERS.get(suffix) or ("\t" if "\t" in first else ","))


def _lines(source: str | Path, name: str) -> Iterator[str]:
    piped = str(source) == "-"
    try:
        with nullcontext(sys.stdin.buffer) if piped else Path(source).open("rb") as file:
            for number, raw in enumerate(file, start=1):
                if number == 1:
                    _require_lines(raw, name)
                yield _line(raw, number, name)
    except OSError as e:
        raise UsageError(
            f"cannot read {name}",
            found=e.strerror or str(e),
            hint="Name a file of rows, or '-' for standard input.",
        ) from e


def _require_lines(raw: bytes, name: str) -> None:
    """Refuse a file whose first bytes show that it is not text."""
    for begin, (what, hint) in PACKED.items():
        if raw.startswith(begin):
            raise UsageError(f"cannot read {name}", expected="lines of text", found=what, hint=hint)


def _line(raw: bytes, number: int, name: str) -> str:
    """Return a line as text, or refuse it."""
    if len(raw) > LONGEST_LINE:
        raise UsageError(
            f"{name}, line {number} is too long",
            expected=f"at most {LONGEST_LINE:,} bytes",
            found=f"{len(raw):,}",
        )
    try:
        line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as e:
        raise _encoding(name, number, raw, e.start) from e
    if "\0" in line:
        raise _encoding(name, number, raw, raw.index(0))
    return line


def _encoding(name: str, number: int, raw: bytes, place: int) -> UsageError:
    """Return the error for a line that is not UTF-8, or contains a zero byte."""
    likely = _likely(raw)
    if likely is None and not raw[place]:
        hint = "Remove it, e.g. with tr -d '\\000'."
    else:
        other = likely or "windows-1252"
        hint = f"Convert the file, e.g. with iconv -f {other} -t utf-8, or save it as CSV in UTF-8."
    return UsageError(
        f"{name}, line {number}",
        expected="UTF-8",
        found=f"byte 0x{raw[place]:02x} at column {place + 1}"
        + (f", as in {likely.upper()}" if likely else ""),
        hint=hint,
    )


def _likely(raw: bytes) -> str | None:
    """Return the UTF-16 or UTF-32 encoding that a line seems to have; None if neither."""
    for mark, encoding in MARKS.items():
        if raw.startswith(mark):
            return encoding
    # In UTF-16, one of the two bytes of a Latin letter is zero.
    for encoding, zeros in (("utf-16le", raw[1::2]), ("utf-16be", raw[::2])):
        if 2 * zeros.count(0) > len(zeros):
            return encoding
    return None


def _json(lines: Iterable[str], name: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            cells = json.loads(line, object_pairs_hook=unique_keys)
        except (ValueError, RecursionError) as e:
            place, hint = str(e), "Change that line."
            if isinstance(e, json.JSONDecodeError | RecursionError):
                hint = ONE_A_LINE
            if isinstance(e, json.JSONDecodeError):  # its own line number is relative to this line
                place = f"{e.msg.removesuffix(' at')} at column {e.pos + 1}"
            raise UsageError(
                f"{name}, line {number}", expected="a JSON object", found=place, hint=hint
            ) from e
        if not isinstance(cells, dict):
            raise UsageError(
                f"{name}, line {number}",
                expected="a JSON object",
                found=type(cells).__name__,
                hint=ONE_A_LINE,
            )
        if "\\u" in line:
            _require_characters(cells, f"{name}, line {number}")
        yield f"line {number}", cells


def _require_characters(cells: Mapping[str, Any], where: str) -> None:
    """Refuse half of a surrogate pair, which JSON can represent but UTF-8 cannot."""
    try:
        json.dumps(cells, ensure_ascii=False).encode()
    except UnicodeEncodeError as e:
        half = f"\\u{ord(e.object[e.start]):04x}, half of a pair"
        raise UsageError(where, expected="whole characters", found=half) from e


def _csv(
    lines: Iterable[str], name: str, delimiter: str
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    reader = csv.DictReader(lines, delimiter=delimiter, strict=True)
    try:
        fields = reader.fieldnames or ()
        _require_different(fields, f"{name}, line {reader.line_num}")
        for cells in reader:
            where = f"line {reader.line_num}"
            more, fewer = cells.pop(None, ()), sum(cell is None for cell in cells.values())
            if more or fewer:
                raise UsageError(
                    f"{name}, {where}",
                    expected=f"{len(fields)} cells, as in the first line",
                    found=str(len(fields) + len(more) - fewer),
                    hint="Put a text with a delimiter or a line end in double quotes.",
                )
            yield where, cells
    except csv.Error as e:
        fault = str(e)
        expected, read, hint = next(v for begin, v in FAULTS.items() if fault.startswith(begin))
        raise UsageError(
            f"{name}, line {reader.line_num + 1}",
            expected=expected,
            found=read or fault,
            hint=hint,
        ) from e


def _require_different(fields: Sequence[str], where: str) -> None:
    """Refuse fields of equal name, of which a row keeps one cell; empty names may repeat."""
    if twice := [field for field, count in Counter(fields).items() if count > 1 and field.strip()]:
        raise UsageError(
            where, expected="fields of different names", found=f"{twice[0]!r} more than once"
        )


def import_parquet(name: str) -> Any:
    """Return the module that reads and writes Parquet files.

    Args:
        name: Name of the file, for the message.

    Raises:
        UsageError: If it is not installed.
    """
    try:
        importlib.import_module("pyarrow")
        return importlib.import_module("pyarrow.parquet")
    except ImportError as e:
        raise UsageError(
            f"{name} is a Parquet file, which pyarrow reads and writes",
            expected="pyarrow",
            found="none",
            hint="pip install 'redhost[parquet]'",
        ) from e


def _parquet(path: Path, name: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    parquet = import_parquet(name)
    try:
        file = parquet.ParquetFile(path)
        _require_different(file.schema_arrow.names, name)
        batches = file.iter_batches(batch_size=BATCH)
        rows = (cells for batch in batches for cells in batch.to_pylist())
        for number, cells in enumerate(rows, start=1):
            yield f"row {number}", cells
    except (OSError, ValueError, NotImplementedError) as e:
        raise UsageError(f"cannot read {name}", found=str(e).splitlines()[0]) from e


def _row(
    cells: Mapping[str, Any],
    fields: _Fields,
    where: str,
    *,
    owned: bool,
    notation: Notation | None,
) -> Row:
    """Return a row's cells as text, label and domain, or refuse them."""
    text = text_of(cells, fields[0], where)
    label, domain = ("" if f is None else cells.get(f) for f in fields[1:])
    if notation is not None and fields[1] in cells:
        given, label = label, notation.read(label, text)
        if label is None:
            expected = notation.expected.format(field=repr(fields[1]), size=len(text))
            raise UsageError(where, expected=expected, found=repr(given)[:40], hint=notation.hint)
    label = label.strip() if isinstance(label, str) else label
    if isinstance(label, float) and not math.isfinite(label):
        raise UsageError(where, expected=f"a finite label in {fields[1]!r}", found=str(label))
    bad = isinstance(label, bool) or not isinstance(label, (str, int, float)) or label == ""
    if bad and fields[1] is not None:
        raise _missing(cells, where, fields[1], "label", label)
    if owned and fields[2] not in cells:
        raise _missing(cells, where, fields[2], "domain", None)
    return Row(text=text, label=str(label), domain=None if domain is None else str(domain))


def _missing(cells: Mapping[str, Any], where: str, field: str, what: str, found: Any) -> UsageError:
    """Return the error for a row without text, label or domain."""
    shown, hint = (
        repr(found)[:40],
        (
            "Sets of labels need a backbone of 'redhost new-backbone --task multi-label'."
            if what == "label" and isinstance(found, list)
            else "Correct the row, or remove it."
        ),
    )
    if field not in cells:
        more = ", …" if len(cells) > SHOWN else ""
        named = ", ".join(map(repr, list(cells)[:SHOWN])) or "none"
        shown = f"no such field among {named}{more}"
        hint = f"Name the field with --{what}-field."
        if len(cells) == 1 and (between := [c for c in ";\t,|" if c in next(iter(cells))]):
            hint = f"Is {between[0]!r} between its cells? Write ',' there in .csv, '\\t' in .tsv."
    return UsageError(where, expected=f"a {what} in {field!r}", found=shown, hint=hint)
