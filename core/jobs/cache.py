"""Finished jobs on disk: a folder for each key, written whole, verified by digest when read."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ...registry.atomic import read, write_folder
from .job import JobFiles

DIGESTS = "digests.json"

log = logging.getLogger("redhost")


@dataclass(frozen=True)
class JobCache:
    """Outputs of jobs, by key; may be deleted at any time.

    Attributes:
        folder: Where.
    """

    folder: Path

    def get(self, key: str) -> JobFiles | None:
        """Return a job's files, or None where they are missing or damaged."""
        digests = read(self.folder / key / DIGESTS)
        if digests is None:
            return None
        files = _intact_files(digests, self.folder / key)
        if files is None:
            log.warning("the cached files of job %s are damaged: it is done again", key[:12])
        return files

    def put(self, key: str, files: JobFiles) -> None:
        """Store a job's files: all of them or none, whenever the process dies.

        Raises:
            StoreError: If the disk is full or failing.
        """
        digests = msgspec.json.encode({n: _sha(d) for n, d in files.items()}, order="sorted")
        write_folder(self.folder / key, {**files, DIGESTS: digests})


def is_plain(name: str) -> bool:
    """Return whether a name can only mean a file of the folder it is put in."""
    return not {"/", "\\", "\0"} & set(name) and name not in {"", ".", "..", DIGESTS}


def _intact_files(listed: bytes, folder: Path) -> JobFiles | None:
    """Return the files that a list of digests names; None if one is missing or differs."""
    try:
        digests = msgspec.json.decode(listed, type=dict[str, str])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    files = {n: read(folder / n) for n in digests if is_plain(n)}
    intact = {n: d for n, d in files.items() if d is not None and _sha(d) == digests[n]}
    return intact if len(intact) == len(digests) else None


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
