"""What a `sync` is about to do, on disk before it does anything: a killed one is finished.

The folder ``HOME/sync`` exists from before the first change until after the last one. It holds the
wheels, so that the source may be gone when the work is taken up again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from redhost.registry import atomic
from redhost.registry.errors import StoreError
from redhost.registry.home.composition import LOCK, LockFile, lock_for
from redhost.registry.home.generations import Generations
from redhost.registry.package.manifest import dumps

from .fetched import Fetched
from .manifest import MANIFEST, WheelEntry, WheelList

FOLDER = "sync"
_PLAN = "plan.json"


class Writing(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A distribution that is being installed.

    Attributes:
        dist: Its name.
        tops: The names that it has in the site folder.
    """

    dist: str
    tops: tuple[str, ...]


class Journal(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A `sync` that is not finished.

    Attributes:
        schema: The version of this schema.
        locks: Folder of a question below the home → the lock that is followed.
        before: The same folders → the generation that was current.
        writing: What is being installed.
        removing: Distributions that are uninstalled last.
    """

    schema: Literal["redhost.sync/1"] = "redhost.sync/1"
    locks: dict[str, LockFile]
    before: dict[str, int | None]
    writing: tuple[Writing, ...]
    removing: tuple[str, ...]


def read_journal(home: Path) -> Journal | None:
    """Return the journal of a `sync` that did not finish, if there is one.

    Raises:
        StoreError: If it cannot be read.
    """
    path = home / FOLDER / _PLAN
    if (data := atomic.read(path)) is None:
        return None
    try:
        return msgspec.json.decode(data, type=Journal)
    except ValueError as e:
        hint = f"Remove {path.parent}, and run 'redhost sync' again."
        raise StoreError(f"cannot read {path}", found=str(e), hint=hint) from e


def write_journal(
    home: Path,
    journal: Journal,
    fetched: Sequence[Fetched],
    *,
    routers: Mapping[str, bytes] | None = None,
) -> None:
    """Write the journal of a home and the wheels that are to be installed, at once.

    Args:
        home: The state folder.
        journal: What is about to be done.
        fetched: The wheels.
        routers: Digest → weights of routers that no generation here has yet.
    """
    files = {f.file: f.data for f in fetched}
    entries = tuple(
        WheelEntry(
            file=f.file,
            sha256=f.sha256,
            dist=f.part.dist,
            version=f.part.version,
            kind=f.part.kind,
            digest=f.part.digest,
        )
        for f in fetched
    )
    names = {digest: f"router-{digest[:16]}.safetensors" for digest in routers or {}}
    files |= {names[digest]: data for digest, data in (routers or {}).items()}
    listed = WheelList(wheels=entries, routers=names)
    files |= {_PLAN: dumps(journal), MANIFEST: atomic.with_digest(listed)}
    atomic.write_folder(home / FOLDER, files)


def end_journal(home: Path) -> None:
    """Remove the journal: all is done, or nothing is changed."""
    if (home / FOLDER).exists():
        atomic.delete_dir(home / FOLDER)


def restore_locks(home: Path, journal: Journal) -> tuple[str, ...]:
    """Put back the locks that were to be followed, where a killed publication derived older ones.

    A writer that finds a half publication derives the lock from the generation that is still
    current. If somebody has composed since, or checked out a third lock, theirs stays.

    Returns:
        The locks that were put back.
    """
    restored = []
    for name, lock in journal.locks.items():
        where, before = home / name, journal.before[name]
        generations, path = Generations(where), where / LOCK
        data = atomic.read(path)
        if before is None or generations.current() != before or data == dumps(lock):
            continue
        if data == dumps(lock_for(generations.load(before))):
            atomic.write_atomic(path, dumps(lock))
            restored.append(str(path))
    return tuple(restored)


def names_of(locks: Mapping[Path, LockFile], home: Path) -> dict[str, LockFile]:
    """Return locks by their folder below a home, which has the name ``.``."""
    return {where.relative_to(home).as_posix(): lock for where, lock in locks.items()}
