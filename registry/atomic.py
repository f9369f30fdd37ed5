"""Write files and folders atomically: a kill or a full disk leaves all old or all new content.

The registry writes only through the primitives below, one system call each, so that a test can stop
the process exactly before and after every one of them.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from .errors import StoreError, short

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
"""Prefix of temporary names, which a killed process may leave behind."""

DAMAGED = "damaged.json"
"""The file in a cache's folder that counts its damaged entries."""


def make_folder(path: Path) -> None:
    """Create a folder and its parents, if missing."""
    path.mkdir(parents=True, exist_ok=True)


def write_file(path: Path, data: bytes) -> None:
    """Write bytes to a file, without waiting until they are on the disk."""
    path.write_bytes(data)


def sync_file(path: Path) -> None:
    """Wait until a file's bytes are on the disk."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def replace(source: Path, target: Path) -> None:
    """Rename, replacing an existing file; this one step makes new content visible."""
    os.replace(source, target)  # noqa: PTH105 - named like the system call it makes


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
    """Remove a folder and its content."""
    shutil.rmtree(path)


def read_regular(path: Path | str, *, limit: int, whole: bool = True) -> bytes:
    """Return the bytes of a regular file.

    Args:
        path: The file.
        limit: The most bytes to read.
        whole: Whether a longer file is an error; otherwise its beginning is returned.

    Raises:
        OSError: If it is missing, is a pipe, a device or a folder, or is too long (``EFBIG``);
            nothing is read then.
    """
    # Non-blocking, because opening a pipe for reading would wait for a writer indefinitely.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    fd = os.open(path, flags)  # without the file objects of Python: each command reads hundreds
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "something else")
        if whole and status.st_size > limit:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        left, parts = min(status.st_size, limit), list[bytes]()
        while part := os.read(fd, left):  # no system reads more than 2 GiB at once
            parts.append(part)
            left -= len(part)
        return b"".join(parts)
    finally:
        os.close(fd)


def read(path: Path) -> bytes | None:
    """Return a file's bytes, or None if it is missing.

    Raises:
        StoreError: If it exists but cannot be read.
    """
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as e:
        reason = e.strerror.lower() if e.strerror else str(e)
        raise StoreError(
            f"cannot read {path}", found=reason, hint="Check the path and its permissions."
        ) from e


def read_struct(path: Path, kind: type[StructT], *, hint: str) -> StructT | None:
    """Return the struct in a JSON file, or None if the file is missing.

    Args:
        path: The file, as `write_struct` writes it: its ``digest`` must match.
        kind: The type of the struct.
        hint: What to do if the file is invalid; its content is never guessed.

    Raises:
        StoreError: If it exists but cannot be read, is invalid, or is damaged.
    """
    try:
        fields = msgspec.json.decode(path.read_bytes())
        digest = fields.pop("digest", "") if isinstance(fields, dict) else ""
        value = msgspec.convert(fields, kind)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as e:
        raise StoreError(f"cannot read {path}", found=str(e), hint=hint) from e
    if digest != (right := _digest(fields)):
        raise StoreError(
            f"{path} is damaged",
            expected=str(digest)[:12] or "a digest",
            found=short(right) if digest else "none",
            hint=hint,
        )
    return value


def write_struct(path: Path, value: msgspec.Struct) -> None:
    """Replace a file by a struct as JSON, durably, with a digest that later reveals damage.

    Raises:
        StoreError: If the disk is full or failing; the old file is still there.
    """
    write_atomic(path, with_digest(value))


def with_digest(value: msgspec.Struct) -> bytes:
    """Return a struct as JSON for `read_struct`, with a digest that later reveals damage."""
    fields = msgspec.to_builtins(value)
    data = msgspec.json.encode({**fields, "digest": _digest(fields)})
    return msgspec.json.format(data, indent=2) + b"\n"


def _digest(fields: object) -> str:
    return hashlib.sha256(msgspec.json.encode(fields, order="sorted")).hexdigest()


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
    """Create a folder with all of its files at once, durably; an existing folder is replaced.

    Args:
        path: The folder.
        files: Content by plain file name.

    Raises:
        StoreError: If the disk is full or failing; the folder is then completely old or new.
    """
    with reporting(path), _temporary(path) as temporary:
        old = temporary.with_name(f"{TEMPORARY}old-{temporary.name}")
        make_folder(temporary)
        for name, data in sorted(files.items()):
            write_file(temporary / name, data)
            sync_file(temporary / name)
        sync_folder(temporary)
        if is_there := path.is_dir():  # no system can replace a folder that is not empty
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
    """Remove a folder so that no process ever sees a part of it."""
    with reporting(path), _temporary(path) as temporary:
        replace(path, temporary)
        sync_folder(path.parent)
        remove_folder(temporary)


def put_back(path: Path, data: bytes | None) -> None:
    """Restore a file as far as a failing disk allows: atomically, but without syncing."""
    with suppress(OSError), _temporary(path) as temporary:
        if data is None:
            remove_file(path)
        else:
            write_file(temporary, data)
            replace(temporary, path)


def remove_temporaries(folder: Path) -> None:
    """Remove what killed processes left in a folder; call it only under the writer's lock."""
    with reporting(folder):
        for path in sorted(folder.glob(f"{TEMPORARY}*")):
            _remove(path)


class _Damage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    entries: int


def count_damage(cache: Path, entries: int = 1) -> None:
    """Count cache entries that are damaged and computed again; `status` reports the count."""
    with suppress(StoreError):
        write_struct(cache / DAMAGED, _Damage(damaged_entries(cache) + entries))


def damaged_entries(cache: Path) -> int:
    """Return how many damaged entries of a cache were counted; a damaged counter counts as one."""
    try:
        counted = read_struct(cache / DAMAGED, _Damage, hint="Remove it.")
    except StoreError:
        return 1
    return 0 if counted is None else counted.entries


@contextmanager
def reporting(path: Path) -> Iterator[None]:
    """Turn an OSError into one line: what could not be written, and what is still valid."""
    try:
        yield
    except OSError as e:
        reason = e.strerror.lower() if e.strerror else str(e)
        hint = "Check free space and permissions; what was current before still is."
        raise StoreError(f"cannot write {path}", found=reason, hint=hint) from e


@contextmanager
def _temporary(path: Path) -> Iterator[Path]:
    """Yield a temporary name next to a path; if the body raises, a file of that name is removed."""
    name = f"{TEMPORARY}{os.getpid()}-{os.urandom(4).hex()}-{path.name}"
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
