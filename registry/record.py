"""RECORD: which files a distribution says it brought, with their hashes.

A row may lead anywhere (``../../etc/passwd``, ``/dev/zero``), so it is judged by its path before
anything is opened.
"""

from __future__ import annotations

import base64
import csv
import io
import re
from dataclasses import dataclass

from .violations import Violation

__all__ = ["Row", "is_plain", "parse_record"]

_ODD = re.compile(r"[\\\x00-\x1f\x7f:]")
_BASE64 = re.compile(r"[A-Za-z0-9_-]{43}=?")
_COLUMNS = 3


@dataclass(frozen=True)
class Row:
    """One file of a RECORD.

    Attributes:
        path: As it stands there, relative to the site folder.
        sha256: In hexadecimal; empty where the row has none.
        size: In bytes; None where the row has none.
    """

    path: str
    sha256: str
    size: int | None


def is_plain(path: str) -> bool:
    """Tell whether a path stays below where it starts, on every system."""
    return not _ODD.search(path) and not {"", ".", ".."} & set(path.split("/"))


def parse_record(data: bytes) -> tuple[Row, ...] | Violation:
    """Read a RECORD; nothing it names is looked at."""
    try:
        lines = csv.reader(io.StringIO(data.decode("utf-8"), newline=""), strict=True)
        return tuple(_row(fields) for fields in lines if fields)
    except (ValueError, csv.Error) as e:
        expected = "rows of a path, a hash and a size"
        return Violation("record_row", "RECORD", expected, str(e)[:120], "Reinstall the package.")


def _row(fields: list[str]) -> Row:
    if len(fields) != _COLUMNS:
        raise ValueError(f"{len(fields)} columns: {','.join(fields)[:80]!r}")
    path, told, size = fields
    return Row(path, _sha256(told), int(size) if size else None)


def _sha256(told: str) -> str:
    """Return the hexadecimal digits of ``sha256=…``; empty for no hash or a weaker one."""
    algorithm, _, value = told.partition("=")
    if algorithm != "sha256":
        return ""
    if not _BASE64.fullmatch(value):
        raise ValueError(f"no hash: {told[:80]!r}")
    return base64.urlsafe_b64decode(value.rstrip("=") + "=").hex()
