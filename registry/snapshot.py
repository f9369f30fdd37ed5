"""The files of an installed package, so that an installation that fails leaves no trace."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from .discover import Package
from .record import is_plain, parse_record

__all__ = ["Snapshot"]


@dataclass(frozen=True)
class _File:
    data: bytes
    mode: int
    mtime_ns: int


@dataclass(frozen=True)
class Snapshot:
    """What was there before an installation.

    Attributes:
        folders: Where the installation may write.
        files: Every file in them, and every other one of the package that was installed.
    """

    folders: tuple[Path, ...]
    files: Mapping[Path, _File]

    @classmethod
    def take(cls, package: Package | None, *, folders: Iterable[Path]) -> Self:
        """Read what is there into memory; a package of None is nothing installed."""
        places = tuple(folders)
        paths = {path for folder in places for path in folder.rglob("*")} | _listed(package)
        return cls(places, {path: _read(path) for path in sorted(paths) if path.is_file()})

    def restore(self) -> None:
        """Remove what came, and put back what was there."""
        for folder in self.folders:
            shutil.rmtree(folder, ignore_errors=True)
        for path, file in self.files.items():
            if path.is_file() and path.read_bytes() == file.data:
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(file.data)
            path.chmod(file.mode)
            os.utime(path, ns=(file.mtime_ns, file.mtime_ns))


def _listed(package: Package | None) -> set[Path]:
    """Return the files of a package: those in its dist-info, and those that RECORD lists."""
    if package is None or package.info is None:
        return set()
    record = package.info / "RECORD"
    rows = parse_record(record.read_bytes()) if record.is_file() else ()
    plain = (r.path for r in rows if is_plain(r.path)) if isinstance(rows, tuple) else ()
    return {package.info.parent / path for path in plain} | set(package.info.rglob("*"))


def _read(path: Path) -> _File:
    status = path.stat()
    return _File(path.read_bytes(), status.st_mode & 0o7777, status.st_mtime_ns)
