"""Write rows in the format of a file's suffix: JSON lines, a table, Parquet."""

from __future__ import annotations

import csv
import importlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from ..core.training.rows import DELIMITERS, JSON, import_parquet
from ..registry.errors import UsageError

GROUP = 1024
"""Rows of a Parquet file that are in memory at a time."""

Cells = Mapping[str, Any]

Rows = Callable[[], Iterable[Cells]]
"""Yields every row, starting over each time it is called."""

Writer = Callable[[Path, Sequence[str], Rows], None]
"""Writes a file, given its fields and its rows."""


def writer_of(target: Path) -> Writer:
    """Return the writer for the suffix of a file.

    Raises:
        UsageError: If there is none, or if it needs pyarrow and that is not installed.
    """
    suffix = target.suffix.lower()
    if suffix in JSON:
        return _write_json
    if suffix in DELIMITERS:
        return partial(_write_table, delimiter=DELIMITERS[suffix])
    if suffix == ".parquet":
        import_parquet(str(target))
        return _write_parquet
    raise UsageError(
        f"no format for {target}",
        expected=", ".join(sorted({*JSON, *DELIMITERS, ".parquet"})),
        found=suffix or "no suffix",
        hint="Name another file, such as answers.csv.",
    )


def _write_json(path: Path, _: Sequence[str], rows: Rows) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(_json(cells) + "\n" for cells in rows())


def _write_table(path: Path, fields: Sequence[str], rows: Rows, *, delimiter: str) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, fields, delimiter=delimiter, lineterminator="\n")
        table.writeheader()
        for cells in rows():
            table.writerow({k: _plain(v) for k, v in cells.items()})


def _plain(value: object) -> object:
    """Return a table's cell: numbers and texts unchanged, dates and other values as in JSON."""
    builtin = _builtin(value)
    return _json(builtin) if isinstance(builtin, (list, dict, bool)) else builtin


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=_builtin)


def _builtin(value: object) -> object:
    """Return the JSON form of a Parquet value, such as a date, a decimal number or bytes."""
    builtin: object = msgspec.to_builtins(value, enc_hook=str)
    return builtin


def _write_parquet(path: Path, fields: Sequence[str], rows: Rows) -> None:
    """Write rows; a field with values of several types is written as text."""
    parquet, arrow = import_parquet(str(path)), importlib.import_module("pyarrow")
    types = dict.fromkeys(fields, arrow.null())
    for columns in _columns(fields, rows):
        types = {f: _type_of(types[f], values, arrow) for f, values in columns.items()}
    schema = arrow.schema(types.items())
    with parquet.ParquetWriter(path, schema) as file:
        for columns in _columns(fields, rows):
            arrays = [_array(values, types[f], arrow) for f, values in columns.items()]
            file.write_table(arrow.Table.from_arrays(arrays, schema=schema))


def _columns(fields: Sequence[str], rows: Rows) -> Iterator[dict[str, list[Any]]]:
    """Yield the cells of some rows by field; None if a row lacks the field."""
    left = iter(rows())
    while group := list(islice(left, GROUP)):
        yield {f: [cells.get(f) for cells in group] for f in fields}


def _type_of(current: Any, values: Sequence[Any], arrow: Any) -> Any:
    """Return a field's type, given its known type and further values."""
    try:
        both = [arrow.schema([("", t)]) for t in (current, arrow.array(values).type)]
        return arrow.unify_schemas(both, promote_options="permissive").field(0).type
    except (arrow.ArrowInvalid, arrow.ArrowTypeError, OverflowError):
        return arrow.string()


def _array(values: Sequence[Any], kind: Any, arrow: Any) -> Any:
    if kind == arrow.string():
        values = [x if x is None or isinstance(x, str) else str(_plain(x)) for x in values]
    return arrow.array(values, kind)
