"""Where a package's bytes come from: a folder, or memory. Each file is opened once."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path

from .discover import Package
from .violations import Violation

__all__ = ["Reader", "Source", "read_file", "reader"]

Source = Package | Mapping[str, bytes]
"""An installed package, or the bytes of one by plain file name (from a wheel or the store)."""

Reader = Callable[[str, str], bytes | Violation]
"""Takes a plain file name and the code to complain under when it is not there."""

_REINSTALL = "Reinstall the package; if that does not help, ask its author for a new build."


def reader(source: Source, *, limit: int) -> Reader:
    """Return the function that reads a source's files.

    Args:
        source: A package or the bytes of one.
        limit: The most bytes that one file may have.
    """
    if isinstance(source, Package):
        return _folder_reader(source, limit)

    def read(name: str, missing: str) -> bytes | Violation:
        data = source.get(name)
        if data is None:
            return Violation(missing, name, "a file", "nothing", _REINSTALL)
        return data if len(data) <= limit else _too_large(name, missing, limit)

    return read


def read_file(path: Path, *, missing: str, limit: int) -> bytes | Violation:
    """Read a regular file in one go.

    Args:
        path: The file.
        missing: The code of the violation when it is not there, e.g. ``weights_missing``.
        limit: The most bytes it may have.

    Returns:
        Its bytes, or why they could not be had.
    """
    try:
        # Non-blocking, because opening a pipe for reading would wait for a writer for ever.
        fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except OSError as e:
        return Violation(missing, path.name, "a readable file", _say(e), _REINSTALL)
    with os.fdopen(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return Violation(missing, path.name, "a regular file", "something else", _REINSTALL)
        try:
            data = file.read(min(status.st_size, limit) + 1)
        except OSError as e:
            return Violation(missing, path.name, "a readable file", _say(e), _REINSTALL)
    return data if len(data) <= limit else _too_large(path.name, missing, limit)


def _folder_reader(package: Package, limit: int) -> Reader:
    folder = package.folder

    def read(name: str, missing: str) -> bytes | Violation:
        if folder is None:
            expected = f"the folder of the top-level package {package.module!r}"
            return Violation("package_files", package.dist, expected, "nothing", _REINSTALL)
        return read_file(folder / name, missing=missing, limit=limit)

    return read


def _too_large(name: str, missing: str, limit: int) -> Violation:
    code = missing.replace("_missing", "_too_large")
    return Violation(code, name, f"at most {limit:,} bytes", "more", "Ask for a smaller build.")


def _say(error: OSError) -> str:
    return error.strerror.lower() if error.strerror else type(error).__name__
