"""Write files and folders so that a kill or a full disk at any moment leaves old or new, whole.

Everything the registry writes goes through the primitives below, one system call each, so that a
test can stop the process exactly before and after every one of them.
"""

from __future__ import annotations

import os
import secrets
import shutil
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
    with reporting(path), _temporary(path) as temporary:
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
    with reporting(path), _temporary(path) as temporary:
        old = temporary.with_name(f"{TEMPORARY}old-{temporary.name}")
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
    with reporting(path), _temporary(path) as temporary:
        replace(path, temporary)
        sync_folder(path.parent)
        remove_folder(temporary)


def put_back(path: Path, data: bytes | None) -> None:
    """Restore a file as well as a failing disk allows: atomically, but without waiting for it."""
    with suppress(OSError), _temporary(path) as temporary:
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
def _temporary(path: Path) -> Iterator[Path]:
    """Give a name beside a path; what has it goes when the body raises, whatever it raises."""
    name = f"{TEMPORARY}{os.getpid()}-{secrets.token_hex(4)}-{path.name}"
    temporary = path.with_name(name[:120])
    try:
        yield temporary
    except BaseException:
        with suppress(OSError):
            _remove(temporary)
        raise


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        remove_folder(path)
    else:
        remove_file(path)
