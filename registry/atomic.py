"""Write files and folders so that a kill or a full disk at any moment leaves old or new, whole.

Everything the registry writes goes through the primitives below, one system call each, so that a
test can stop the process exactly before and after every one of them.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from .errors import StoreError

StructT = TypeVar("StructT", bound=msgspec.Struct)

PRIMITIVES = (
    "make_folder",
    "write_file",
    "sync_file",
    "replace",
    "sync_folder",
    "remove_file",
    "remove_folder",
)
"""The functions of this module that touch the disk; nothing else in the registry writes."""

TEMPORARY = ".tmp-"
"""How every name begins that a dead process may have left behind."""


def make_folder(path: Path) -> None:
    """Create a folder and its parents, if missing."""
    path.mkdir(parents=True, exist_ok=True)


def write_file(path: Path, data: bytes) -> None:
    """Write bytes to a file, with no promise about when they reach the disk."""
    path.write_bytes(data)


def sync_file(path: Path) -> None:
    """Wait until a file's bytes are on the disk."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def replace(source: Path, target: Path) -> None:
    """Rename, over a file that may be there; the one step that makes new things visible."""
    os.replace(source, target)  # noqa: PTH105 - one system call, named as it is


def sync_folder(path: Path) -> None:
    """Wait until a folder's entries are on the disk (Windows has no such call)."""
    if os.name == "nt":
        return
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def remove_file(path: Path) -> None:
    """Remove a file, if it is there."""
    path.unlink(missing_ok=True)


def remove_folder(path: Path) -> None:
    """Remove a folder and what is in it."""
    shutil.rmtree(path)


def read_regular(path: Path | str, *, limit: int) -> bytes:
    """Return the bytes of a regular file; of one with more than ``limit``, one more than that.

    Raises:
        OSError: If it is not there, or is a pipe, a device or a folder.
    """
    # Non-blocking, because opening a pipe for reading would wait for a writer for ever.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    fd = os.open(path, flags)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "something else")
        with os.fdopen(fd, "rb", closefd=False) as file:
            return file.read(min(status.st_size, limit) + 1)
    finally:
        os.close(fd)


def read(path: Path) -> bytes | None:
    """Return a file's bytes, None when it is not there.

    Raises:
        StoreError: If it is there and cannot be read.
    """
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as e:
        found = e.strerror.lower() if e.strerror else str(e)
        raise StoreError(f"cannot read {path}", found=found) from e


def read_struct(path: Path, kind: type[StructT], *, hint: str) -> StructT | None:
    """Return what a JSON file holds, None when it is not there.

    Args:
        path: The file.
        kind: The struct it holds.
        hint: What to do when it cannot be understood: guessing is never right.

    Raises:
        StoreError: If it is there and cannot be read or understood.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as e:
        raise StoreError(f"cannot read {path}", found=str(e), hint=hint) from e


def write_atomic(path: Path, data: bytes) -> None:
    """Replace a file by new bytes, durably.

    Args:
        path: The file; its folder is created if missing.
        data: All of its new content.

    Raises:
        StoreError: If the disk is full or failing; the old file is still there.
    """
    temporary = _temporary(path)
    with reporting(path), _cleaning(temporary):
        make_folder(path.parent)
        write_file(temporary, data)
        sync_file(temporary)
        replace(temporary, path)
        sync_folder(path.parent)


def write_folder(path: Path, files: Mapping[str, bytes]) -> None:
    """Create a folder with all of its files at once, durably; one that is there is replaced.

    Args:
        path: The folder.
        files: Content by plain file name.

    Raises:
        StoreError: If the disk is full or failing; the folder is the old or the new one, whole.
    """
    temporary, old = _temporary(path), _temporary(path)
    with reporting(path), _cleaning(temporary):
        make_folder(temporary)
        for name, data in sorted(files.items()):
            write_file(temporary / name, data)
            sync_file(temporary / name)
        sync_folder(temporary)
        if is_there := path.is_dir():  # no system replaces a folder that has something in it
            replace(path, old)
        try:
            replace(temporary, path)
        except BaseException:
            if is_there:
                replace(old, path)
            raise
        sync_folder(path.parent)
        if is_there:
            remove_folder(old)


def delete_dir(path: Path) -> None:
    """Remove a folder so that no one ever sees half of it."""
    temporary = _temporary(path)
    with reporting(path):
        replace(path, temporary)
        sync_folder(path.parent)
        remove_folder(temporary)


def put_back(path: Path, data: bytes | None) -> None:
    """Restore a file as well as a failing disk allows: atomically, but without waiting for it."""
    temporary = _temporary(path)
    with suppress(OSError), _cleaning(temporary):
        if data is None:
            remove_file(path)
        else:
            write_file(temporary, data)
            replace(temporary, path)


def remove_temporaries(folder: Path) -> None:
    """Remove what killed processes left in a folder; call it under the writer's lock only."""
    with reporting(folder):
        for path in sorted(folder.glob(f"{TEMPORARY}*")):
            _remove(path)


@contextmanager
def reporting(path: Path) -> Iterator[None]:
    """Turn an OSError into one line that says what could not be written and what still holds."""
    try:
        yield
    except OSError as e:
        found = e.strerror.lower() if e.strerror else str(e)
        hint = "Check free space and permissions; what was current before still is."
        raise StoreError(f"cannot write {path}", found=found, hint=hint) from e


@contextmanager
def _cleaning(temporary: Path) -> Iterator[None]:
    """Remove the temporary file or folder when the body raises, whatever it raises."""
    try:
        yield
    except BaseException:
        with suppress(OSError):
            _remove(temporary)
        raise


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        remove_folder(path)
    else:
        remove_file(path)


def _temporary(path: Path) -> Path:
    return path.with_name(f"{TEMPORARY}{os.getpid()}-{secrets.token_hex(4)}-{path.name}"[:120])
