"""Where a fleet meets: a folder, or an object store.

Two ways to write are enough. `create` writes a file that is not there yet, whole or not at all: of
two writers of one name, one wins, and that is the only thing that a fleet ever agrees on. `write`
replaces a file whole, for what one process alone writes.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

import redhost

__all__ = ["FolderStorage", "ObjectStorage", "Storage", "open_storage"]

ATOMIC = ("s3", "s3a", "gs", "gcs")
"""Protocols whose libraries create a file by a conditional request, and not by a look before."""

TEMPORARY = ".tmp-"

OPTIONS: dict[str, Any] = {
    "s3": {
        "max_concurrency": 1,  # or each read asks for the size first, and lists what is not there
        "config_kwargs": {
            "connect_timeout": 3,
            "read_timeout": 10,
            "retries": {"mode": "standard", "max_attempts": 2},
        },
    }
}
"""Options by protocol: a read is one request, and a store that does not answer an error soon."""


class Storage(Protocol):
    """Files by name, e.g. ``stages/production/00000001.json``.

    Every method raises `StoreError` where the store cannot be reached.
    """

    @property
    def url(self) -> str:
        """Where it is, for people."""
        ...

    def read(self, name: str) -> bytes | None:
        """Return a file's bytes, None where it is not there."""
        ...

    def create(self, name: str, data: bytes) -> bool:
        """Write a file that is not there; tell whether it now holds these bytes."""
        ...

    def write(self, name: str, data: bytes) -> None:
        """Replace a file whole."""
        ...

    def names(self, folder: str) -> list[str]:
        """Return the names of the files in a folder, sorted, without the folder's."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        ...


class FolderStorage:
    """A folder that all machines see, e.g. on a network file system.

    Args:
        folder: The folder; made at the first write.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()

    @property
    def url(self) -> str:
        """Where it is, for people."""
        return str(self.folder)

    def read(self, name: str) -> bytes | None:
        """Return a file's bytes, None where it is not there."""
        with _reporting(self.url, "read"):
            try:
                return (self.folder / name).read_bytes()
            except FileNotFoundError:
                return None

    def create(self, name: str, data: bytes) -> bool:
        """Write a file that is not there; tell whether it now holds these bytes."""
        target = self.folder / name
        with _reporting(self.url, "write to"), _written(target, data) as temporary:
            try:
                os.link(temporary, target)  # unlike a rename, never over a file that is there
            except FileExistsError:
                return target.read_bytes() == data
            _sync(target.parent)
            return True

    def write(self, name: str, data: bytes) -> None:
        """Replace a file whole."""
        target = self.folder / name
        with _reporting(self.url, "write to"), _written(target, data) as temporary:
            temporary.replace(target)
            _sync(target.parent)

    def names(self, folder: str) -> list[str]:
        """Return the names of the files in a folder, sorted, without the folder's."""
        with _reporting(self.url, "read"):
            try:
                found = [path.name for path in (self.folder / folder).iterdir()]
            except FileNotFoundError:
                return []
        return sorted(name for name in found if not name.startswith(TEMPORARY))

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        with _reporting(self.url, "write to"):
            (self.folder / name).unlink(missing_ok=True)


class ObjectStorage:
    """An object store, through fsspec; credentials and endpoints come from its library's own ways.

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
                use_listings_cache=False,  # others write too
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
            self._files.retries = 2  # a follower tries again by itself
        self._url, self._root = url.rstrip("/"), str(root).rstrip("/")

    @property
    def url(self) -> str:
        """Where it is, for people."""
        return self._url

    def read(self, name: str) -> bytes | None:
        """Return a file's bytes, None where it is not there."""
        with _reporting(self.url, "read"):
            try:
                return bytes(self._files.cat_file(self._path(name)))
            except FileNotFoundError:
                return None

    def create(self, name: str, data: bytes) -> bool:
        """Write a file that is not there; tell whether it now holds these bytes."""
        with _reporting(self.url, "write to"):
            try:
                self._files.pipe_file(self._path(name), data, mode="create")
            except FileExistsError:  # it may be ours: an answer was lost, and the library repeated
                return self.read(name) == data
            return True

    def write(self, name: str, data: bytes) -> None:
        """Replace a file whole."""
        with _reporting(self.url, "write to"):
            self._files.pipe_file(self._path(name), data)

    def names(self, folder: str) -> list[str]:
        """Return the names of the files in a folder, sorted, without the folder's."""
        with _reporting(self.url, "read"):
            try:
                found = self._files.ls(f"{self._path(folder)}/", detail=False)
            except FileNotFoundError:
                return []
        return sorted(name for path in found if (name := PurePosixPath(path).name))

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
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
        SettingsError: If it cannot be used by a fleet.
    """
    if "://" not in url:
        return FolderStorage(Path(url).expanduser())
    if url.startswith("file://"):
        return FolderStorage(Path(url.removeprefix("file://")))
    return ObjectStorage(url)


@contextmanager
def _written(target: Path, data: bytes) -> Iterator[Path]:
    """Yield a file beside another that holds bytes, safe on the disk; it is gone afterwards."""
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
    """Wait until a folder's entries are on the disk (Windows has no such call)."""
    if os.name == "nt":
        return
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def _reporting(url: str, what: str) -> Iterator[None]:
    """Turn what goes wrong with a store into one line."""
    try:
        yield
    except redhost.RedhostError:
        raise
    except Exception as e:  # each library raises its own kinds, not all of them an OSError
        found = e.strerror if isinstance(e, OSError) and e.strerror else str(e) or type(e).__name__
        raise redhost.errors.StoreError(
            f"cannot {what} the store {url}",
            found=" ".join(found.split()),
            hint="See that it is there, that you may use it, and try again.",
        ) from e
