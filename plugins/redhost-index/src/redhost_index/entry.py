"""Read the wheels of a folder, of which no code is imported or run."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import InvalidVersion
from redhost_author.disclosure import card_discloses
from redhost_author.strict import strict_check
from redhost_author.targets import Target, static_check

import redhost
from redhost.registry.errors import excerpt
from redhost.registry.package.checked import Violation
from redhost.registry.package.discover import MAX_METADATA, entries
from redhost.registry.package.manifest import (
    MAX_BYTES,
    BackboneManifest,
    ExpertManifest,
    parse_backbone,
    parse_expert,
)
from redhost.registry.package.readers import BackboneFiles, read_backbone, read_expert
from redhost.registry.package.rules import package_digest
from redhost.registry.wheel.signing import PublicKey, read_signature, signature_path, verify
from redhost.registry.wheel.wheel import Wheel, read_wheel

from .schema import LABELS, StaticCheck, Version

DOMAIN, LABEL = 500, 100
"""Most characters of a domain, and of a label, that are listed."""

Signature = Literal["none", "claimed", "verified", "wrong"]


@dataclass(frozen=True, kw_only=True)
class WheelFile:
    """A wheel of a folder.

    Attributes:
        path: Where it is.
        file: Its path in the folder.
        sha256: The sha256 of the file.
        size: Its bytes.
        uploaded: When it was put there.
    """

    path: Path
    file: str
    sha256: str
    size: int
    uploaded: str


@dataclass(frozen=True, kw_only=True)
class Against:
    """A backbone of the folder that experts are checked against.

    Attributes:
        name: Its distribution and version.
        files: Its manifest; no other of its files is needed for that.
    """

    name: str
    files: BackboneFiles


def kind_of(path: Path) -> Literal["expert", "backbone", "other", "unreadable"]:
    """Return what a wheel's entry points declare it to be; all else of it is not read."""
    try:
        with zipfile.ZipFile(path) as archive:
            text = _member(archive, ".dist-info/entry_points.txt", most=MAX_METADATA)
        found = text.decode("utf-8")
    except LookupError:
        return "other"
    except (OSError, ValueError, zipfile.BadZipFile, NotImplementedError, RuntimeError):
        return "unreadable"
    if any(entries(found, "redhost.experts")):
        return "expert"
    return "backbone" if any(entries(found, "redhost.backbones")) else "other"


def manifest_of(path: Path) -> BackboneManifest | None:
    """Return the manifest of a backbone's wheel that was audited before."""
    try:
        with zipfile.ZipFile(path) as archive:
            data = _member(archive, "/backbone.json", most=MAX_BYTES)
    except (LookupError, OSError, ValueError, zipfile.BadZipFile):
        return None
    return parse_backbone(data).value


def _member(archive: zipfile.ZipFile, suffix: str, *, most: int) -> bytes:
    """Return the one member of an archive whose name ends so and has one folder.

    Raises:
        LookupError: If there is none.
        ValueError: If it is too large.
    """
    names = (n for n in archive.namelist() if n.endswith(suffix) and n.count("/") == 1)
    if (name := next(names, None)) is None:
        raise LookupError(suffix)
    with archive.open(name) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise ValueError(f"{name} is too large")
    return data


def read_version(wheel: WheelFile, against: Sequence[Against]) -> Version:
    """Return the entry of a wheel of an expert or a backbone."""
    read = read_wheel(wheel.path)
    if read.value is None:
        return unreadable(wheel, read.violations)
    if read.value.package.kind == "backbone":
        return _backbone(wheel, read.value)
    return _expert(wheel, read.value, against)


def unreadable(wheel: WheelFile, violations: Sequence[Violation]) -> Version:
    """Return the entry of a wheel that is refused, with what its file name says."""
    dist = version = ""
    try:
        name, number, _, _ = parse_wheel_filename(Path(wheel.file).name)
        dist, version = str(name), str(number)
    except (InvalidWheelFilename, InvalidVersion):
        pass
    entry = _blank(wheel, "unreadable")
    check = _check(violations, against="")
    return msgspec.structs.replace(entry, dist=dist, version=version, check=check)


def signed(entry: Version, path: Path, *, keys: Sequence[PublicKey]) -> Version:
    """Return an entry with what is known of who signed the wheel."""
    state: Signature = "none"
    signer, where = "", signature_path(path)
    data = read_signature(where).value if where.exists() else None
    if data is not None:
        state, signer = "claimed", _claimed(data)
        if keys:
            found = verify(path.read_bytes(), data, keys=keys, name=where.name).value
            state = "wrong" if found is None else "verified"
            signer = "" if found is None else found.fingerprint
    return msgspec.structs.replace(entry, signature=state, signer=signer)


def _claimed(signature: bytes) -> str:
    try:
        hint = json.loads(signature)["verificationMaterial"]["publicKey"]["hint"]
    except (ValueError, TypeError, LookupError, RecursionError):
        return ""
    return excerpt(hint, most=64) if isinstance(hint, str) else ""


def _blank(wheel: WheelFile, kind: Literal["expert", "backbone", "unreadable"]) -> Version:
    return Version(
        file=wheel.file,
        sha256=wheel.sha256,
        size=wheel.size,
        uploaded=wheel.uploaded,
        kind=kind,
        check=StaticCheck(redhost=redhost.__version__),
    )


def _backbone(wheel: WheelFile, opened: Wheel) -> Version:
    raw = opened.files["backbone.json"]
    parsed = parse_backbone(raw)
    violations = parsed.violations
    if parsed.value is not None and parsed.value.base.kind != "dist":
        # The model of the others is in another distribution, which may be installed here or not.
        violations = read_backbone(opened.files).violations
    entry = msgspec.structs.replace(
        _blank(wheel, "backbone"),
        dist=opened.package.dist,
        version=opened.package.version,
        check=_check(violations, against=""),
    )
    if (manifest := parsed.value) is None:
        return entry
    return msgspec.structs.replace(
        entry,
        id=manifest.id,
        backbone=manifest.id,
        fingerprint=manifest.fingerprint,
        bus_api=manifest.bus_api,
        form=manifest.task,
        labels=_labels(manifest.labels),
        label_count=len(manifest.labels),
        license=excerpt(manifest.license, most=LABEL),
        digest=package_digest(raw, manifest),
    )


def _expert(wheel: WheelFile, opened: Wheel, against: Sequence[Against]) -> Version:
    raw = opened.files["expert.json"]
    manifest = parse_expert(raw).value
    base = against_of(manifest.backbone.fingerprint if manifest else "", against)
    entry = msgspec.structs.replace(
        _blank(wheel, "expert"),
        dist=opened.package.dist,
        version=opened.package.version,
        check=_checked(wheel, opened, base),
    )
    if manifest is None:
        return entry
    return msgspec.structs.replace(
        entry,
        id=manifest.id,
        domain=excerpt(manifest.domain, most=DOMAIN),
        question=manifest.question or "",
        backbone=manifest.backbone.name,
        fingerprint=manifest.backbone.fingerprint,
        bus_api=manifest.bus_api,
        form=manifest.form,
        labels=_labels(manifest.labels),
        label_count=len(manifest.labels),
        accuracy=_accuracy(manifest),
        gate_rows=manifest.card.gate,
        discloses=card_discloses(manifest),
        license=excerpt(manifest.license, most=LABEL),
        digest=package_digest(raw, manifest),
    )


def against_of(fingerprint: str, against: Sequence[Against]) -> Against | None:
    """Return the backbone of a fingerprint."""
    return next((b for b in against if b.files.manifest.fingerprint == fingerprint), None)


def _accuracy(manifest: ExpertManifest) -> float | None:
    return manifest.training.metrics.get("gate") if manifest.card.gate else None


def _labels(labels: Sequence[str]) -> tuple[str, ...]:
    return tuple(excerpt(label, most=LABEL) for label in labels[:LABELS])


def _checked(wheel: WheelFile, opened: Wheel, base: Against | None) -> StaticCheck:
    """Take the static part of `redhost check --strict`, against a backbone of the folder."""
    expert = read_expert(opened.files)
    target = Target(
        Path(wheel.file).name,
        opened.files,
        expert.value,
        expert.violations,
        base.files if base else None,
    )
    lacks = (v for v in strict_check(target) if base or v.field != "backbone")
    return _check((*static_check(target), *lacks), against=base.name if base else "")


def _check(violations: Sequence[Violation], *, against: str) -> StaticCheck:
    first = violations[0] if violations else None
    return StaticCheck(
        redhost=redhost.__version__,
        against=against,
        code=first.code if first else "",
        reason=first.reason if first else "",
    )
