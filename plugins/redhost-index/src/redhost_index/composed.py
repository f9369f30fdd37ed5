"""What is composed and installed here, of which an index may have newer versions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from redhost.commands.lazy import PLUGINS
from redhost.registry.home.composition import Composition
from redhost.registry.home.questions import (
    homes_with,
    nothing_composed,
    place_of,
    question_of,
)
from redhost.registry.home.store import Store
from redhost.registry.package.discover import canonical
from redhost.registry.package.manifest import BackboneManifest, parse_backbone
from redhost.registry.queries.inventory import current_record

Kind = Literal["expert", "backbone", "plugin", "redhost"]


@dataclass(frozen=True, kw_only=True)
class InUse:
    """A package in use.

    Attributes:
        kind: What it is.
        id: The id of an expert or backbone, else the distribution.
        dist: Its distribution.
        version: The version in use.
        home: The folder of the composition that it is a member of; the root for other packages.
        digest: The digest of its content; empty for code.
        source: Where it was taken from; empty if that is not recorded.
        fingerprint: The fingerprint of that composition's backbone.
        backbone: That backbone's manifest, if the store has it.
    """

    kind: Kind
    id: str
    dist: str
    version: str
    home: Path
    digest: str = ""
    source: str = ""
    fingerprint: str = ""
    backbone: BackboneManifest | None = None

    @property
    def question(self) -> str:
        """The question that it answers; empty for the default one."""
        return question_of(self.home) or ""


def records_of(home: Path) -> dict[Path, Composition]:
    """Return the current composition of a home and of its questions, by the folder of each.

    Raises:
        MissingError: If nothing is composed.
    """
    read = ((where, current_record(where)) for where in homes_with(home))
    records = {where: record for where, record in read if record is not None}
    if not records:
        raise nothing_composed(home)
    return records


def in_use(home: Path) -> tuple[InUse, ...]:
    """Return the members of a home's compositions, then backbones, plugins, and redhost itself."""
    experts, bases, providers = list[InUse](), dict[str, InUse](), set[str]()
    for where, record in records_of(home).items():
        backbone = backbone_of(where, record)
        experts += (
            InUse(
                kind="expert",
                id=member.id,
                dist=member.dist,
                version=member.version,
                home=where,
                digest=member.digest,
                source=_index_of(member.source, where),
                fingerprint=record.backbone.fingerprint,
                backbone=backbone,
            )
            for member in record.experts
        )
        base = record.backbone
        if base.dist:
            bases[canonical(base.dist)] = InUse(
                kind="backbone",
                id=base.id,
                dist=base.dist,
                version=base.version,
                home=where,
                digest=base.digest,
                source=_index_of(base.source or "", where),
                fingerprint=base.fingerprint,
                backbone=backbone,
            )
        providers |= {canonical(dist) for dist in record.providers}
    return (*experts, *bases.values(), *_code(home, providers))


def _index_of(source: str, home: Path) -> str:
    """Return the index or folder that a lock names; a wheel that was given by its path is none."""
    return "" if source.endswith(".whl") else place_of(source, home)


def backbone_of(home: Path, record: Composition) -> BackboneManifest | None:
    """Return the manifest of a composition's backbone."""
    if not record.backbone.digest:
        return None
    stored = Store(home).file(record.backbone.digest, "backbone.json")
    return parse_backbone(stored).value


def _code(home: Path, providers: set[str]) -> Iterator[InUse]:
    names = sorted({*providers, *(f"redhost-{extra}" for extra in PLUGINS)})
    for dist in (*names, "redhost"):
        try:
            version = metadata.version(dist)
        except metadata.PackageNotFoundError:
            continue
        kind: Kind = "redhost" if dist == "redhost" else "plugin"
        yield InUse(kind=kind, id=dist, dist=dist, version=version, home=home)
