"""Move a whole composition to another backbone: port, judge, compose, install, publish.

It is atomic: until the new generation has passed every gate, the old one stays current and nothing
is installed. Rolling back needs no old package, since the store keeps everything composed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Unpack

import msgspec
from redhost_author.training.context import AuthoringContext, open_for_training
from redhost_author.wheels import build_wheel

from redhost.core.composition.options import RecomposeKeywords
from redhost.core.composition.publish import publish
from redhost.core.composition.recompose import compose_selection
from redhost.core.composition.refusal import accepted
from redhost.core.composition.select import Selection, read_source
from redhost.core.model.build import read_package
from redhost.core.receipt import Receipt
from redhost.core.session import Session
from redhost.core.types import Progress, Row
from redhost.registry.atomic import write_atomic
from redhost.registry.environment.installer import installed_from, require_free
from redhost.registry.environment.status import PackageStatus
from redhost.registry.errors import (
    HarmError,
    MissingError,
    RedhostError,
    StoreError,
    UnknownNameError,
    UsageError,
)
from redhost.registry.home.composition import BackboneRecord, Composition, Member
from redhost.registry.package.discover import Package
from redhost.registry.package.manifest import ExpertManifest
from redhost.registry.package.readers import BackboneFiles
from redhost.registry.queries.inventory import take_inventory
from redhost.registry.wheel.wheel import Wheel, open_wheel
from redhost_port.porting import SHARE, PortReport, port_expert, write_port


@dataclass(frozen=True, kw_only=True)
class PortingMaterial:
    """The data and wheels that experts are ported with.

    Attributes:
        texts: Unlabelled texts for the maps; by default both backbones' background cards.
        rows: Labelled rows that no expert trained on, for experts whose card holds no texts. Each
            expert uses those with its own labels (and its domain, if a row names one).
        bound: The least share of its gain that each expert has to keep.
        native: Wheels of members that were made for the new backbone; these are not ported.
        without: Ids of members that are left out.
    """

    texts: Sequence[str] = ()
    rows: Sequence[Row] = ()
    bound: float = SHARE
    native: Sequence[Wheel] = ()
    without: Sequence[str] = ()


class Migrated(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `migrate`.

    Attributes:
        old: The backbone of the previous generation.
        new: The backbone of the new generation.
        ported: The report of each port, with the share of its gain that it keeps.
        native: Ids of the experts whose wheel was made for the new backbone.
        without: Ids of the experts that were left out.
        wheels: The ports' wheels.
        receipt: The receipt of the composition.
    """

    old: str
    new: str
    ported: tuple[PortReport, ...]
    native: tuple[str, ...]
    without: tuple[str, ...]
    wheels: tuple[str, ...]
    receipt: Receipt


def migrate(
    session: Session,
    to: Package,
    *,
    material: PortingMaterial,
    out: Path,
    **keywords: Unpack[RecomposeKeywords],
) -> Migrated:
    """Port the current members to another backbone and publish their composition.

    Args:
        session: The session whose composition is moved.
        to: The new backbone, installed.
        material: The data and wheels that the members are ported with.
        out: A folder for the ports' wheels, written once all have passed.
        keywords: See `RecomposeKeywords`.

    Raises:
        UsageError: If it is the backbone of the current generation, or a wheel belongs to no
            member.
        HarmError: If members keep too little of their gain (all are named, with figures), or a
            domain would lose more than the tolerance.
    """
    session.require_current()  # a folder without a composition is not written to
    with session.generations.writer() as writer, tempfile.TemporaryDirectory() as name:
        record = session.generations.load(session.require_current())
        files = read_package(to)
        native, members = _sort(session, record, to, material, files)
        progress = keywords.get("progress")
        porter = _Porter(
            session=session, record=record, to=to, material=material, progress=progress
        )
        ports = _port_all(porter, members, Path(name))
        for port in ports.values():  # a fault of this environment, not of an expert
            require_free(port.wheel.package)
        joining = {**native, **{i: _read(session, port.wheel, files) for i, port in ports.items()}}
        selection = Selection(package=to, files=files, statuses=tuple(joining.values()))
        result = accepted(
            compose_selection(session, selection, keywords, made_with=record.settings)
        )
        _require_attached(joining, result.receipt)
        with ExitStack() as stack:
            for wheel in _to_install(material, ports, joining):
                stack.enter_context(installed_from(wheel))
            written = _write([port.wheel for port in ports.values()], out)
            receipt = publish(session, result, writer=writer)
    session.plugins.notify("redhost_composed", receipt=receipt)
    return Migrated(
        old=record.backbone.id,
        new=files.manifest.id,
        ported=tuple(port.report for port in ports.values()),
        native=tuple(sorted(native)),
        without=tuple(sorted(material.without)),
        wheels=written,
        receipt=receipt,
    )


@dataclass(frozen=True, kw_only=True)
class _Port:
    """A ported expert.

    Attributes:
        wheel: Its build, audited.
        report: How much of its gain it keeps.
    """

    wheel: Wheel
    report: PortReport


def _sort(
    session: Session,
    record: Composition,
    to: Package,
    material: PortingMaterial,
    files: BackboneFiles,
) -> tuple[dict[str, PackageStatus], tuple[Member, ...]]:
    """Return the experts that were made for the new backbone, by id, and the members to port.

    Raises:
        UnknownNameError: If a wheel, or a name to leave out, belongs to no member.
        UsageError: If the backbone is the composed one, if no expert would be left, or if members
            would be ported although wheels must be signed, since ports are not.
    """
    if files.manifest.fingerprint == record.backbone.fingerprint:
        raise UsageError(f"generation {record.number} is composed on {to.dist} already")
    members = {m.id: m for m in record.experts}
    installed = take_inventory(session.home, backbone=to.dist, remember=False).statuses
    native = {str(s.id): s for s in installed if s.id in members and not s.violations}
    for wheel in material.native:
        status = _read(session, wheel, files)
        native[str(status.id)] = status
    for named in (*native, *material.without):
        if named not in members:
            raise UnknownNameError("composed expert", named, members)
    native = {i: s for i, s in native.items() if i not in material.without}
    rest = tuple(m for i, m in members.items() if i not in {*native, *material.without})
    if not native and not rest:
        raise UsageError("no expert would be left", expected="one that comes along")
    if rest and session.settings.keys:
        raise UsageError(
            "this project composes signed wheels alone, and ports are not signed",
            found=f"{', '.join(m.id for m in rest)} to be ported",
            hint="Port each with 'redhost port', sign it with 'redhost pack --sign', and bring the "
            "wheels: --with.",
        )
    return native, rest


@dataclass(frozen=True, kw_only=True, eq=False)
class _Porter:
    """Ports members one by one; each backbone is opened once.

    Attributes:
        session: The session whose members are ported.
        record: Their generation.
        to: The new backbone.
        material: The data and wheels that they are ported with.
        progress: Called with (texts encoded, texts to encode).
        opened: Backbones by digest; the new one under an empty digest.
    """

    session: Session
    record: Composition
    to: Package
    material: PortingMaterial
    progress: Progress | None
    opened: dict[str, AuthoringContext] = field(default_factory=dict)

    def port(self, member: Member, folder: Path) -> _Port:
        """Port one member and build its wheel in a folder."""
        store, material = self.session.store, self.material
        built, origin = _authors_build(self.session, member, self.record)
        expert = store.expert(built.digest, name=built.id)
        old = self._open(store.backbone(origin.digest, name=origin.id), origin.digest)
        ported = port_expert(
            expert,
            old=old,
            new=self._open(self.to, ""),
            texts=material.texts,
            rows=[r for r in material.rows if _is_of(r, expert.manifest)],
            bound=material.bound,
        )
        project = folder / built.id
        write_port(project, ported, version=built.version)
        # Its folder does not last: a lock would name what is gone.
        wheel = msgspec.structs.replace(open_wheel(build_wheel(project, folder)), source="")
        return _Port(wheel=wheel, report=ported.report)

    def _open(self, source: Package | BackboneFiles, digest: str) -> AuthoringContext:
        if digest not in self.opened:
            self.opened[digest] = open_for_training(
                source,
                cache=self.session.cache,
                device=self.session.device,
                progress=self.progress,
            )
        return self.opened[digest]


def _port_all(porter: _Porter, members: Sequence[Member], folder: Path) -> dict[str, _Port]:
    """Port members; return the ports by id.

    Raises:
        HarmError: If some cannot be ported or keep too little; it names all of them.
    """
    found, failed = dict[str, _Port](), dict[str, str]()
    for member in members:
        try:
            found[member.id] = porter.port(member, folder)
        except (MissingError, StoreError):
            raise  # a fault of this machine, not of an expert
        except RedhostError as e:
            failed[member.id] = e.reason
    if failed:
        raise HarmError(
            f"{len(failed)} of {len(members)} experts do not survive on {porter.to.dist}",
            found="; ".join(f"{i}: {reason}" for i, reason in failed.items()),
            hint="Nothing was changed. Bring wheels made for it (--with), texts (--texts) or "
            "labelled rows (--rows), or leave these behind (--without).",
        )
    return found


def _authors_build(
    session: Session, member: Member, record: Composition
) -> tuple[Member, BackboneRecord]:
    """Return a member as its author built it, and the backbone it was built for.

    Porting a port would add up the errors of both maps. If the author's build was composed before,
    the store still has it.
    """
    ported = session.store.expert(member.digest, name=member.id).manifest.ported
    for earlier in reversed(session.generations.history()) if ported else ():
        for known in earlier.experts:
            if ported and known.digest == ported.digest:
                return known, earlier.backbone
    return member, record.backbone


def _is_of(row: Row, expert: ExpertManifest) -> bool:
    """Return whether a labelled row belongs to an expert."""
    return row.label in expert.labels and row.domain in {None, expert.id}


def _read(session: Session, wheel: Wheel, files: BackboneFiles) -> PackageStatus:
    keys = session.settings.keys or ()
    return read_source(wheel, backbone=files.manifest, home=session.home, keys=keys)


def _require_attached(statuses: Mapping[str, PackageStatus], receipt: Receipt) -> None:
    """Refuse to leave out an expert that was to be migrated."""
    for lost in sorted(statuses.keys() - receipt.experts.keys()):
        reason = next((x.reason for x in receipt.left_out if x.id == lost), "no reason")
        raise HarmError(f"expert {lost!r} does not compose on the new backbone", found=reason)


def _to_install(
    material: PortingMaterial, ports: Mapping[str, _Port], joining: Mapping[str, PackageStatus]
) -> Iterator[Wheel]:
    """Yield the wheels that are not installed yet."""
    wheels = (*material.native, *(port.wheel for port in ports.values()))
    by_wheel = {wheel.sha256: wheel for wheel in wheels}
    for status in joining.values():
        if status.origin and status.origin.wheel in by_wheel:
            yield by_wheel[status.origin.wheel]


def _write(wheels: Sequence[Wheel], out: Path) -> tuple[str, ...]:
    """Write wheels into a folder; return their paths."""
    for wheel in wheels:
        write_atomic(out / wheel.name, wheel.data)
    return tuple(str(out / wheel.name) for wheel in wheels)
