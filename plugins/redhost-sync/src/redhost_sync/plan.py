"""What has to change so that the environment has what the locks name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib import metadata
from itertools import chain
from pathlib import Path
from typing import Literal, Self

from msgspec import Struct
from packaging.requirements import InvalidRequirement, Requirement

from redhost.registry.errors import IntegrityError, MissingError, UnknownNameError
from redhost.registry.home.composition import LockFile
from redhost.registry.home.store import Store
from redhost.registry.package.discover import Package, canonical, discover
from redhost.registry.package.readers import read_expert
from redhost.registry.queries.inventory import current_record, installed_manifests
from redhost.registry.wheel.signing import PublicKey

from .dependencies import with_dependencies
from .fetched import Fetched, fetch_part
from .journal import Journal
from .locks import Part, parts_of
from .models import fetch_model, missing_model
from .sources import FolderSource, Source, source_at
from .state import is_installed, version_of


class Step(Struct, frozen=True, kw_only=True):
    """A change of the environment.

    Attributes:
        action: ``install``, ``change`` (another build or version is installed) or ``remove``.
        kind: ``expert``, ``backbone``, ``plugin`` or ``dependency``.
        dist: The distribution.
        version: The version that the lock names; the installed one for ``remove``.
        before: The installed version, if any.
        source: Where the wheel comes from.
        sha256: The sha256 of the wheel.
        also_for: Installed experts outside the locks that were made for the backbone that is
            replaced: they cannot be composed afterwards.
    """

    action: Literal["install", "change", "remove"]
    kind: str
    dist: str
    version: str
    before: str | None = None
    source: str = ""
    sha256: str = ""
    also_for: tuple[str, ...] = ()


class Staying(Struct, frozen=True, kw_only=True):
    """An installed expert that no lock names, and that stays.

    Attributes:
        dist: Its distribution.
        reason: Why it is not removed.
    """

    dist: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All changes of the environment.

    Attributes:
        fetched: The wheels to install, with what their code needs.
        steps: The changes, as they are reported.
        staying: Experts that no lock names and that stay.
    """

    fetched: tuple[Fetched, ...]
    steps: tuple[Step, ...]
    staying: tuple[Staying, ...]

    @property
    def removing(self) -> tuple[str, ...]:
        """The distributions that are uninstalled."""
        return tuple(step.dist for step in self.steps if step.action == "remove")


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Where wheels may come from.

    Attributes:
        given: The sources that the user named; if there are none, those that the locks record.
        otherwise: Returns the source of what has none recorded.
        journal: What a killed `sync` had obtained.
        recorded: All sources that the locks record, each of which may have other packages too.
    """

    given: tuple[Source, ...]
    otherwise: Callable[[], Source]
    journal: FolderSource | None = None
    recorded: Mapping[str, Source] = field(default_factory=dict)

    def after(self, journal: Path | None) -> Self:
        """Return these sources, after the folder of a killed `sync` if there is one."""
        return replace(self, journal=None if journal is None else FolderSource(journal))

    @property
    def all(self) -> tuple[Source, ...]:
        """Those that may have more than the wheel of one part."""
        return (*((self.journal,) if self.journal else ()), *self.given)

    def of(self, part: Part) -> Iterator[Source]:
        """Yield the sources of a part, in order; what they have is compared with the lock."""
        listed = self.journal.listed if self.journal else None
        entries = listed.wheels if listed else ()
        if self.journal and any(
            e.digest == part.digest and canonical(e.dist) == canonical(part.dist) for e in entries
        ):
            yield self.journal
            return
        yield from self.given
        if not self.given:
            own = (self.recorded[part.source],) if part.source else ()
            yield from dict.fromkeys((*own, *self.recorded.values()))
            if not own:  # the default index gets no private name
                yield self.otherwise()


def make_plan(
    locks: Mapping[Path, LockFile],
    sources: Sources,
    *,
    journal: Journal | None,
    keys: Sequence[PublicKey] = (),
) -> Plan:
    """Compare locks with the environment, and obtain what is missing; nothing is changed.

    Args:
        locks: The locks, by folder.
        sources: Where wheels may come from.
        journal: What a killed `sync` was doing.
        keys: If there are any, one of them must have signed an expert.

    Raises:
        RedhostError: If anything cannot be obtained, or is not what the locks name.
    """
    parts = parts_of(locks)
    missing = [part for part in parts if not is_installed(part)]
    recorded = {part.source: source_at(part.source) for part in parts if part.source}
    sources = replace(sources, recorded=recorded)
    fetched = [_fetch(part, sources, keys) for part in missing]
    present = [part for part in parts if part.kind == "plugin" and part not in missing]
    complete = with_dependencies(fetched, sources.all, present=present)
    leaving, staying = _others(locks, parts, journal)
    return Plan(fetched=complete, steps=(*map(_step, complete), *leaving), staying=staying)


def _fetch(part: Part, sources: Sources, keys: Sequence[PublicKey]) -> Fetched:
    """Obtain a part, or of a backbone that lacks only its model, the model."""
    if (model := missing_model(part)) is None:
        return fetch_part(part, sources.of(part), keys=keys)
    return fetch_model(model, part, chain(sources.of(part), (sources.otherwise(),)))


def _step(one: Fetched) -> Step:
    part = one.part
    before = version_of(part.dist)
    return Step(
        action="install" if before is None else "change",
        kind=part.kind,
        dist=part.dist,
        version=part.version,
        before=before,
        source=one.source,
        sha256=one.sha256,
        also_for=_stranded(one) if before is not None else (),
    )


def _stranded(one: Fetched) -> tuple[str, ...]:
    """Return installed experts of a backbone's id with another fingerprint than its new one."""
    if one.part.kind != "backbone":
        return ()
    new = one.backbone.manifest
    made = ((p.dist, m.backbone) for p, m in installed_manifests() if m is not None)
    return tuple(d for d, b in made if b.name == new.id and b.fingerprint != new.fingerprint)


def _others(
    locks: Mapping[Path, LockFile], parts: Sequence[Part], journal: Journal | None
) -> tuple[tuple[Step, ...], tuple[Staying, ...]]:
    """Return what leaves, and what stays, of the installed experts that no lock names.

    Only what was composed here and is not in the lock any more leaves: another project may use the
    same environment.
    """
    named = {canonical(part.dist) for part in parts}
    composed = {canonical(dist) for dist in _composed(locks)}
    composed |= {canonical(dist) for dist in (journal.removing if journal else ())}
    leaving, staying = list[Step](), list[Staying]()
    for package in discover("expert"):
        dist = canonical(package.dist)
        if dist in named:
            continue
        if dist not in composed:
            reason = _revoked(package, locks) or "it is not in the current composition either"
            staying.append(Staying(dist=package.dist, reason=reason))
        elif needing := _needing(dist):
            reason = f"{', '.join(needing)} cannot do without it"
            staying.append(Staying(dist=package.dist, reason=reason))
        else:
            version = package.version
            step = Step(
                action="remove", kind="expert", dist=package.dist, version=version, before=version
            )
            leaving.append(step)
    return tuple(leaving), tuple(staying)


def _revoked(package: Package, locks: Mapping[Path, LockFile]) -> str:
    """Return that an installed expert is revoked, and why; empty if it is not."""
    revoked = {digest: entry for where in locks for digest, entry in Store(where).revoked().items()}
    files = read_expert(package).value if revoked else None
    entry = None if files is None else revoked.get(files.digest)
    return "" if entry is None else f"it is revoked: {entry.why}"


def _composed(locks: Mapping[Path, LockFile]) -> Iterator[str]:
    """Yield the distributions of the current generations."""
    for where in locks:
        with suppress(IntegrityError, UnknownNameError, MissingError):
            if (record := current_record(where)) is not None:
                yield from (member.dist for member in record.experts)


def _needing(dist: str) -> tuple[str, ...]:
    """Return the installed distributions that require another one."""
    found = list[str]()
    for other in metadata.distributions():
        for line in other.requires or ():
            with suppress(InvalidRequirement):
                requirement = Requirement(line)
                marker = requirement.marker
                if canonical(requirement.name) == dist and (
                    marker is None or marker.evaluate({"extra": ""})
                ):
                    found.append(other.metadata["Name"])
    return tuple(sorted(set(found)))
