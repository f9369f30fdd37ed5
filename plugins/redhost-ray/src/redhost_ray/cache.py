"""Finished jobs on disk: a folder for each key, written atomically, verified by digest on read."""

from __future__ import annotations

import hashlib
import logging
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from redhost.registry.atomic import count_damage, delete_dir, read, write_folder
from redhost.registry.errors import StoreError
from redhost_ray.job import JobFiles

DIGESTS = "digests.json"

log = logging.getLogger("redhost")


@dataclass(frozen=True)
class JobCache:
    """Outputs of jobs, by key; may be deleted at any time.

    Attributes:
        folder: The cache's folder.
    """

    folder: Path

    def get(self, key: str) -> JobFiles | None:
        """Return a job's files, or None if they are missing or damaged."""
        if not (self.folder / key).exists():
            return None
        try:
            files = _intact_files(self.folder / key)
        except StoreError:
            files = None
        if files is None:
            log.warning("the cached files of job %s are damaged: it is done again", key[:12])
            with suppress(StoreError):  # damage is counted only if the folder could be deleted
                delete_dir(self.folder / key)
                count_damage(self.folder)
        return files

    def put(self, key: str, files: JobFiles) -> None:
        """Store a job's files atomically: all of them or none, even if the process dies.

        Raises:
            StoreError: If the disk is full or failing.
        """
        digests = {n: _sha(d) for n, d in sorted(files.items())}
        listed = msgspec.json.encode({**digests, DIGESTS: _sha_of(digests)})
        write_folder(self.folder / key, {**files, DIGESTS: listed})


def is_plain(name: str) -> bool:
    """Return whether a name can only refer to a file directly in a given folder."""
    return not {"/", "\\", "\0"} & set(name) and name not in {"", ".", "..", DIGESTS}


def _intact_files(folder: Path) -> JobFiles | None:
    """Return the files named in a list of digests; None if one is missing or differs."""
    try:
        digests = msgspec.json.decode(read(folder / DIGESTS) or b"", type=dict[str, str])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    if digests.pop(DIGESTS, None) not in {None, _sha_of(digests)}:  # older lists have no own digest
        return None
    files = {n: read(folder / n) for n in digests if is_plain(n)}
    intact = {n: d for n, d in files.items() if d is not None and _sha(d) == digests[n]}
    return intact if len(intact) == len(digests) else None


def _sha_of(digests: dict[str, str]) -> str:
    return _sha(msgspec.json.encode(digests, order="sorted"))


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
