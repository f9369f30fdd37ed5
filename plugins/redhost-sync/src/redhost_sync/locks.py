"""What the locks of a project name: a backbone, experts and plugins, each by its content."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from redhost.registry.errors import CompositionError, MissingError, short
from redhost.registry.home.composition import LOCK, LockFile, read_lock
from redhost.registry.home.questions import homes_with, place_of
from redhost.registry.home.store import Store
from redhost.registry.package.discover import canonical

Kind = Literal["backbone", "expert", "plugin", "dependency"]


@dataclass(frozen=True, kw_only=True)
class Part:
    """A package that a lock names.

    Attributes:
        kind: What it is.
        id: The id of an expert or backbone, else the distribution.
        dist: Its distribution.
        version: The version; empty if the lock has none.
        digest: The digest of its content; empty if the lock has none.
        wheel: The sha256 of the wheel that it was composed from; empty if not known.
        source: The index, folder or path that this wheel was taken from; empty if not known.
        signer: The fingerprint of the key that verified this wheel; empty if no keys were given.
    """

    kind: Kind
    id: str
    dist: str
    version: str = ""
    digest: str = ""
    wheel: str = ""
    source: str = ""
    signer: str = ""

    def __str__(self) -> str:
        return f"{self.dist} {self.version}".rstrip()


def read_locks(home: Path) -> dict[Path, LockFile]:
    """Return the lock of a home and those of its questions, by the folder of each.

    Raises:
        MissingError: If there is none.
        StoreError: If one cannot be read.
    """
    read = ((where, read_lock(where / LOCK)) for where in homes_with(home))
    locks = {where: lock for where, lock in read if lock is not None}
    if not locks:
        raise MissingError(
            f"there is no {LOCK} in {home}",
            hint="Go to the folder of the project, name its state with --home, or run "
            "'redhost recompose' once.",
        )
    return locks


def refuse_revoked(home: Path, locks: Mapping[Path, LockFile], *, to_be: str) -> None:
    """Refuse locks that name what the home knows to be revoked.

    Args:
        home: The state folder.
        locks: The locks.
        to_be: What was to be done with it, such as ``installed``.

    Raises:
        ContractError: If one does.
    """
    revoked = Store(home).revoked()
    for part in parts_of(locks) if revoked else ():
        if part.digest in revoked:
            problem = f"the lock names {part}, which was not {to_be}"
            raise revoked[part.digest].violation().error(problem)


def parts_of(locks: Mapping[Path, LockFile]) -> tuple[Part, ...]:
    """Return every package that locks name, once: plugins, then backbones, then experts.

    Raises:
        CompositionError: If two locks name other content of one distribution.
    """
    parts = dict[str, Part]()
    for where, lock in locks.items():
        for part in _named(lock, where):
            known = parts.setdefault(canonical(part.dist), part)
            if known.digest != part.digest:
                raise CompositionError(
                    f"two locks name other content of {part.dist}",
                    expected=short(known.digest),
                    found=short(part.digest),
                    hint="Compose one of the questions anew, in the environment of the other.",
                )
    order = ("plugin", "backbone", "expert")
    return tuple(sorted(parts.values(), key=lambda p: (order.index(p.kind), p.dist)))


def _named(lock: LockFile, where: Path) -> Iterator[Part]:
    base = lock.backbone
    if not base.dist or not base.digest:
        raise MissingError(
            f"the lock does not tell which package has backbone {base.id!r}",
            hint="Run 'redhost recompose' where it is installed, and commit the lock.",
        )
    yield Part(
        kind="backbone",
        id=base.id,
        dist=base.dist,
        version=base.version,
        digest=base.digest,
        wheel=base.wheel or "",
        source=place_of(base.source or "", where),
    )
    for dist, digest in lock.plugins.items():
        yield Part(kind="plugin", id=dist, dist=dist, digest=digest)
    for expert_id, expert in lock.experts.items():
        yield Part(
            kind="expert",
            id=expert_id,
            dist=expert.dist,
            version=expert.version,
            digest=expert.digest,
            wheel=expert.wheel,
            source=place_of(expert.source, where),
            signer=expert.signer,
        )
