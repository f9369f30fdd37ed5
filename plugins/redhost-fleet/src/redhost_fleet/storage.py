"""Storage of a fleet: a folder, or an object store.

Two write operations suffice. `create` atomically writes a file that does not exist yet: of two
writers of one name, exactly one succeeds, and the fleet needs no other consensus. `write` replaces
a file atomically; it is used for files that have a single writer.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

import redhost
from redhost_fleet.documents import RefusedFileError

__all__ = ["FolderStorage", "ObjectStorage", "Storage", "open_storage"]

ATOMIC = ("s3", "s3a", "gs", "gcs")
"""Protocols whose libraries create a file by a conditional request, not by checking first."""

TEMPORARY = ".tmp-"

LARGEST = 2**24
"""Bytes of the largest document that is read; others that write to the store could write more."""

OPTIONS: dict[str, Any] = {
    "s3": {
        "max_concurrency": 1,  # otherwise a read requests the size first, and lists missing files
        "config_kwargs": {
            "connect_timeout": 3,
            "read_timeout": 10,
            "retries": {"mode": "standard", "max_attempts": 2},
        },
    }
}
"""Options by protocol: one request per read, and a short timeout for an unreachable store."""


class Storage(Protocol):
    """Files by name, e.g. ``stages/production/00000001.json``.

    Every method raises `StoreError` if the store cannot be reached.
    """

    @property
    def url(self) -> str:
        """The address, for display."""
        ...

    def read(self, name: str, *, limit: int = LARGEST) -> bytes | None:
        """Return a file's bytes; None if it does not exist.

        Raises:
            RefusedFileError: If it is no regular file, cannot be opened, or has more bytes.
        """
        ...

    def create(self, name: str, data: bytes) -> bool:
        """Write a file unless it exists; return whether it now has these bytes."""
        ...

    def write(self, name: str, data: bytes) -> None:
        """Replace a file atomically."""
        ...

    def names(self, folder: str) -> list[str]:
        """Return the names of the files in a folder, sorted, without the folder's name."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file if it exists."""
        ...


class FolderStorage:
    """A folder that all machines share, e.g. on a network file system.

    Args:
        folder: The folder; created at the first write.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()

    @property
    def url(self) -> str:
        """The address, for display."""
        return str(self.folder)

    def read(self, name: str, *, limit: int = LARGEST) -> bytes | None:
        """Return a regular file's bytes; None if it does not exist."""
        path = self.folder / name
        with _reporting(self.url, "read"):
            try:
                data = _read_regular(path, most=limit + 1)
            except FileNotFoundError:
                return None
            except OSError as e:
                if not path.parent.is_dir():  # then it is the store that cannot be read
                    raise
                raise _refused(self.url, name, (e.strerror or str(e)).lower()) from e
        return _bounded(self.url, name, data, limit)

    def create(self, name: str, data: bytes) -> bool:
        """Write a file unless it exists; return whether it now has these bytes."""
        target = self.folder / name
        with _reporting(self.url, "write to"), _written(target, data) as temporary:
            try:
                os.link(temporary, target)  # unlike a rename, never replaces an existing file
            except FileExistsError:
                return self.read(name, limit=max(LARGEST, len(data))) == data
            _sync(target.parent)
            return True

    def write(self, name: str, data: bytes) -> None:
        """Replace a file atomically."""
        target = self.folder / name
        with _reporting(self.url, "write to"), _written(target, data) as temporary:
            temporary.replace(target)
            _sync(target.parent)

    def names(self, folder: str) -> list[str]:
        """Return the names of the files in a folder, sorted, without the folder's name."""
        with _reporting(self.url, "read"):
            try:
                found = [path.name for path in (self.folder / folder).iterdir()]
            except FileNotFoundError:
                return []
        return sorted(name for name in found if not name.startswith(TEMPORARY))

    def remove(self, name: str) -> None:
        """Remove a file if it exists."""
        with _reporting(self.url, "write to"):
            (self.folder / name).unlink(missing_ok=True)


class ObjectStorage:
    """An object store, through fsspec; its library finds credentials and endpoints.

    Args:
        url: E.g. ``s3://bucket/folder``.

    Raises:
        SettingsError: If the library of its protocol is missing, or may create a file twice.
    """

    def __init__(self, url: str) -> None:
        protocol = url.partition("://")[0]
        if protocol not in ATOMIC:
            raise redhost.errors.SettingsError(
                f"cannot share generations through {url}",
                expected=f"a folder, or one of {', '.join(f'{p}://' for p in ATOMIC)}",
                found=f"{protocol}://, which may let two writers win",
                hint="Use a store with conditional writes.",
            )
        try:
            import fsspec

            self._files, root = fsspec.core.url_to_fs(
                url,
                use_listings_cache=False,  # other machines write too
                skip_instance_cache=True,
                **OPTIONS.get("s3" if protocol.startswith("s3") else protocol, {}),
            )
        except ImportError as e:
            extra = "s3" if protocol.startswith("s3") else "gcs"
            raise redhost.errors.SettingsError(
                f"cannot open {url}",
                found=str(e),
                hint=f"Run 'pip install redhost-fleet[{extra}]'.",
            ) from e
        if hasattr(self._files, "retries"):
            self._files.retries = 2  # the follower retries on its own
        self._url, self._root = url.rstrip("/"), str(root).rstrip("/")

    @property
    def url(self) -> str:
        """The address, for display."""
        return self._url

    def read(self, name: str, *, limit: int = LARGEST) -> bytes | None:
        """Return a file's bytes; None if it does not exist."""
        path = self._path(name)
        with _reporting(self.url, "read"):
            try:
                data = bytes(self._files.cat_file(path, start=0, end=limit + 1))
            except FileNotFoundError:
                return None
            except OSError:  # an empty file has no byte that could be asked for
                if self._files.info(path)["size"]:
                    raise
                return b""
        return _bounded(self.url, name, data, limit)

    def create(self, name: str, data: bytes) -> bool:
        """Write a file unless it exists; return whether it now has these bytes."""
        with _reporting(self.url, "write to"):
            try:
                self._files.pipe_file(self._path(name), data, mode="create")
            except FileExistsError:  # may be our own: a lost reply makes the library retry
                return self.read(name, limit=max(LARGEST, len(data))) == data
            return True

    def write(self, name: str, data: bytes) -> None:
        """Replace a file atomically."""
        with _reporting(self.url, "write to"):
            self._files.pipe_file(self._path(name), data)

    def names(self, folder: str) -> list[str]:
        """Return the names of the files in a folder, sorted, without the folder's name."""
        with _reporting(self.url, "read"):
            try:
                found = self._files.ls(f"{self._path(folder)}/", detail=False)
            except FileNotFoundError:
                return []
        return sorted(name for path in found if (name := PurePosixPath(path).name))

    def remove(self, name: str) -> None:
        """Remove a file if it exists."""
        with _reporting(self.url, "write to"):
            try:
                self._files.rm_file(self._path(name))
            except FileNotFoundError:
                return

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"


def open_storage(url: str) -> Storage:
    """Return the store at a URL, or in a folder.

    Raises:
        SettingsError: If a fleet cannot use it.
    """
    if "://" not in url:
        return FolderStorage(Path(url).expanduser())
    if url.startswith("file://"):
        return FolderStorage(Path(url.removeprefix("file://")))
    return ObjectStorage(url)


def _read_regular(path: Path, *, most: int) -> bytes:
    """Return at most so many bytes of a regular file.

    Raises:
        OSError: If it is missing, or is a link, a folder, a pipe or a device.
    """
    # Non-blocking, because opening a pipe for reading would wait for a writer indefinitely.
    flags = (getattr(os, name, 0) for name in ("O_NONBLOCK", "O_NOFOLLOW", "O_BINARY"))
    fd = os.open(path, os.O_RDONLY | sum(flags))
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "something else")
        with os.fdopen(fd, "rb", closefd=False) as file:
            return file.read(most)
    finally:
        os.close(fd)


def _bounded(url: str, name: str, data: bytes, limit: int) -> bytes:
    if len(data) > limit:
        raise _refused(url, name, "more", expected=f"at most {limit:,} bytes")
    return data


def _refused(
    url: str, name: str, found: str, *, expected: str = "a regular file"
) -> RefusedFileError:
    return RefusedFileError(
        f"cannot use {name} of the store {url}",
        expected=expected,
        found=found,
        hint="Find out who wrote it, and remove it.",
    )


@contextmanager
def _written(target: Path, data: bytes) -> Iterator[Path]:
    """Yield a synced temporary file with the bytes, next to the target; remove it afterwards."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f"{TEMPORARY}{secrets.token_hex(8)}")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def _sync(folder: Path) -> None:
    """Sync a folder's entries to the disk (Windows has no such call)."""
    if os.name == "nt":
        return
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def _reporting(url: str, what: str) -> Iterator[None]:
    """Convert the errors of a store into a `StoreError` of one line."""
    try:
        yield
    except redhost.RedhostError:
        raise
    except Exception as e:  # each library raises its own types, not all of them an OSError
        found = e.strerror if isinstance(e, OSError) and e.strerror else str(e) or type(e).__name__
        raise redhost.errors.StoreError(
            f"cannot {what} the store {url}",
            found=" ".join(found.split()),
            hint="See that it is there, that you may use it, and try again.",
        ) from e
