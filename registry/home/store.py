"""The bytes of everything that was ever composed, by digest.

With the store, the previous composition keeps answering after ``pip uninstall``, and rollback is
only a rename.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from .. import atomic
from ..errors import IntegrityError, StoreError, short
from ..package.checked import Checked
from ..package.readers import BackboneFiles, ExpertFiles, read_backbone, read_expert
from .questions import root_of
from .revoked import REVOKED, Revocation, Revocations

PackageFiles = ExpertFiles | BackboneFiles
_Files = TypeVar("_Files", ExpertFiles, BackboneFiles)

_DIGEST = re.compile(r"[0-9a-f]{64}")
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")

WRITTEN, SLOWEST = 5.0, 50e6
"""Seconds that it may take to store a package, beside that for its bytes, and bytes in a second."""

_REINSTALL = "Install the package if it is gone, then run 'redhost recompose --accept'."


def is_plain(name: str) -> bool:
    """Return whether a file name may occur in a package or generation: no path, not hidden."""
    return _PLAIN.fullmatch(name) is not None


class Store:
    """``HOME/store/<sha256>/``: one folder per expert or backbone, never changed in place.

    Args:
        home: The folder of a project's state, or of one of its questions.
        held: Packages whose bytes one command has read and checked: these are not read again.
    """

    def __init__(self, home: Path, *, held: Iterable[PackageFiles] = ()) -> None:
        self.home, self.folder = home, root_of(home) / "store"
        self._held = {files.digest: files for files in held}

    def has(self, digest: str) -> bool:
        """Return whether the store has the bytes of this digest."""
        return self._path(digest).is_dir()

    def digests(self) -> frozenset[str]:
        """Return every digest in the store."""
        return frozenset(p.name for p in self.folder.glob("*") if _DIGEST.fullmatch(p.name))

    def is_touched(self, digest: str) -> bool:
        """Return whether a copy is gone, or was changed since it was stored, as its times tell.

        Its files are written together, so that their times and the folder's are close.
        """
        try:
            files = [path.stat() for path in self._path(digest).iterdir()]
            times = [self._path(digest).stat().st_mtime, *(file.st_mtime for file in files)]
        except OSError:
            return True
        size = sum(file.st_size for file in files)
        return not files or max(times) - min(times) > WRITTEN + size / SLOWEST

    def get(self, digest: str) -> dict[str, bytes]:
        """Read every file of a digest; the caller must verify the digest.

        Raises:
            StoreError: If they are missing or cannot be read.
        """
        try:
            return {p.name: p.read_bytes() for p in sorted(self._path(digest).iterdir())}
        except OSError as e:
            raise self._unreadable(digest, e) from e

    def file(self, digest: str, name: str) -> bytes:
        """Read one file of a digest; the caller must verify it.

        Raises:
            StoreError: If it is missing or cannot be read.
        """
        try:
            return (self._path(digest) / name).read_bytes()
        except OSError as e:
            raise self._unreadable(digest, e) from e

    def expert(self, digest: str, *, name: str) -> ExpertFiles:
        """Read an expert that was checked when it was stored, and verify the hash of every byte.

        Args:
            digest: The digest of its package.
            name: Its id, for messages.

        Raises:
            StoreError: If it is missing or cannot be read.
            ContractError: If the stored files are no longer an expert.
            IntegrityError: If they have another digest.
        """
        if isinstance(held := self._held.get(digest), ExpertFiles):
            return held
        return _verified(read_expert(self.get(digest), checked_digest=digest), digest, name)

    def backbone(self, digest: str, *, name: str) -> BackboneFiles:
        """Read a backbone, as `expert` reads an expert."""
        if isinstance(held := self._held.get(digest), BackboneFiles):
            return held
        return _verified(read_backbone(self.get(digest), checked_digest=digest), digest, name)

    def put(self, files: Mapping[str, bytes], *, digest: str) -> None:
        """Store the files of a digest; a damaged copy is replaced, an equal one stays.

        Args:
            files: Content by plain file name.
            digest: The digest of the package, as `read_expert` gives it.

        Raises:
            StoreError: If a name is not plain, or the disk is full or failing.
        """
        if bad := sorted(name for name in files if not is_plain(name)):
            raise StoreError("cannot store", expected="plain file names", found=repr(bad[0]))
        path = self._path(digest)
        if path.is_dir() and self.get(digest) == dict(files):
            return
        atomic.write_folder(path, files)

    def revoked(self) -> Mapping[str, Revocation]:
        """Return what may not be used, by digest.

        Raises:
            StoreError: If the file that names it cannot be read: it may name anything.
        """
        if atomic.read(self.folder.with_name(REVOKED)) is None:
            return {}
        return self.revocations().by_digest()

    def revocations(self) -> Revocations:
        """Return all that the home knows to be revoked; raises as `revoked` does."""
        path = self.folder.with_name(REVOKED)
        hint = "'redhost revoked --index-url URL' fetches it again; what you allowed is lost."
        return atomic.read_struct(path, Revocations, hint=hint) or Revocations()

    def write_revocations(self, revocations: Revocations) -> None:
        """Replace all that the home knows to be revoked; call it under the writer's lock."""
        atomic.write_struct(self.folder.with_name(REVOKED), revocations)

    def purge(self, digests: Iterable[str]) -> None:
        """Remove stored copies; missing ones are ignored."""
        for digest in sorted(set(digests) & self.digests()):
            atomic.delete_dir(self._path(digest))

    def _unreadable(self, digest: str, error: OSError) -> StoreError:
        return StoreError(
            f"cannot read {short(digest)} from the store",
            found="nothing" if isinstance(error, FileNotFoundError) else str(error.strerror),
            hint=_REINSTALL,
        )

    def _path(self, digest: str) -> Path:
        if not _DIGEST.fullmatch(digest):
            raise StoreError("no such digest", expected="64 hexadecimal digits", found=repr(digest))
        return self.folder / digest


def _verified(read: Checked[_Files], digest: str, name: str) -> _Files:
    """Return content read from the store, if it has the digest it was stored under."""
    # What reads packages proposes to reinstall them; it is the stored copy that is damaged.
    files = replace(
        read, violations=tuple(replace(v, hint=_REINSTALL) for v in read.violations)
    ).unwrap(f"stored {name!r}")
    if files.digest != digest:
        raise IntegrityError(
            f"stored {name!r} is damaged",
            expected=short(digest),
            found=short(files.digest),
            hint=_REINSTALL,
        )
    return files
