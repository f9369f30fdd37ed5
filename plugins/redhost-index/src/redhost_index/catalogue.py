"""Write the catalogue of a folder of wheels; what has not changed is taken from the former one."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from msgspec import Struct

import redhost
from redhost.registry import atomic
from redhost.registry.errors import MissingError, StoreError
from redhost.registry.package.discover import canonical
from redhost.registry.package.manifest import dumps
from redhost.registry.package.readers import BackboneFiles
from redhost.registry.wheel.signing import PublicKey

from .entry import Against, WheelFile, against_of, kind_of, manifest_of, read_version, signed
from .page import catalogue_page
from .schema import CATALOGUE, PAGE, Catalogue, Version, decode, number_of
from .simple import write_simple

Report = Callable[[int, int], None]


class Catalogued(Struct, frozen=True, kw_only=True):
    """The result of `catalogue`.

    Attributes:
        folder: The folder.
        versions: How many versions are listed.
        experts: How many experts these are.
        unchanged: How many were taken from the former catalogue.
        refused: Path of each wheel that is refused → why.
        others: How many wheels are no expert and no backbone.
        projects: How many projects ``simple/`` has; 0 if it was not asked for.
    """

    folder: str
    versions: int
    experts: int
    unchanged: int
    refused: dict[str, str]
    others: int
    projects: int = 0


def write_catalogue(
    folder: Path,
    *,
    keys: Sequence[PublicKey] = (),
    simple: bool = False,
    progress: Report | None = None,
) -> Catalogued:
    """Write ``catalogue.json`` and ``catalogue.html`` into a folder of wheels.

    Args:
        folder: The folder; wheels in its subfolders are listed too.
        keys: Whose signatures are verified.
        simple: Whether to write an index for pip, too; what cannot be read is not in it.
        progress: Called with (wheels read, all wheels).

    Raises:
        MissingError: If there is no such folder, or no wheel in it.
    """
    former = _former(folder / CATALOGUE)
    known = {version.sha256: version for version in former.versions}
    others = frozenset(former.others.values())
    wheels = [*_wheels(folder, {v.file: v for v in former.versions})]
    if not wheels:
        hint = "Name the folder that has them, e.g. 'dist' after 'make index'."
        raise MissingError(f"there is no wheel in {folder}", hint=hint)
    found, rest, reused = list[Version](), dict[str, str](), 0
    kinds = [_kind(wheel, known, others) for wheel in wheels]
    against = list[Against]()
    # Backbones first: experts are checked against them.
    order = sorted(range(len(wheels)), key=lambda n: kinds[n] != "backbone")
    for done, n in enumerate(order):
        wheel, kind = wheels[n], kinds[n]
        if kind == "other":
            rest[wheel.file] = wheel.sha256
            continue
        entry = _reusable(known.get(wheel.sha256), against)
        reused += entry is not None
        entry = entry or read_version(wheel, against)
        entry = msgspec.structs.replace(entry, file=wheel.file, uploaded=wheel.uploaded)
        found.append(signed(entry, wheel.path, keys=keys))
        if kind == "backbone":
            against += _against(wheel, entry)
            against.sort(key=lambda base: base.name)
        if progress is not None:
            progress(done + 1, len(wheels))
    made = Catalogue(
        redhost=redhost.__version__,
        versions=_ordered(found),
        others=dict(sorted(rest.items())),
    )
    with atomic.reporting(folder):
        atomic.write_atomic(folder / CATALOGUE, dumps(made))
        atomic.write_atomic(folder / PAGE, catalogue_page(made).encode())
    return Catalogued(
        folder=str(folder),
        versions=len(found),
        experts=sum(v.kind == "expert" for v in found),
        unchanged=reused,
        refused={v.file: v.check.reason for v in made.versions if not v.check.composable},
        others=len(made.others),
        projects=write_simple(folder, made) if simple else 0,
    )


def _former(path: Path) -> Catalogue:
    """Return the catalogue that is there; one that cannot be read is written anew."""
    with suppress(OSError, StoreError):
        return decode(path.read_bytes(), str(path))
    return Catalogue(redhost="", versions=())


def _wheels(folder: Path, former: Mapping[str, Version]) -> Iterator[WheelFile]:
    """Yield the wheels below a folder, in the order of their paths."""
    if not folder.is_dir():
        raise MissingError(f"there is no folder {folder}", hint="Name a folder of wheels.")
    for path in sorted(folder.rglob("*.whl")):
        file = path.relative_to(folder).as_posix()
        if not path.is_file() or any(part.startswith(".") for part in Path(file).parts):
            continue
        with atomic.reporting(path), path.open("rb") as opened:
            sha256 = hashlib.file_digest(opened, "sha256").hexdigest()
            status = os.fstat(opened.fileno())
        before = former.get(file)
        uploaded = before.uploaded if before and before.sha256 == sha256 else _date(status)
        yield WheelFile(path=path, file=file, sha256=sha256, size=status.st_size, uploaded=uploaded)


def _date(status: os.stat_result) -> str:
    """Return the time of a file, or that of the release if this is earlier."""
    seconds = int(status.st_mtime)
    with suppress(KeyError, ValueError):
        seconds = min(seconds, int(os.environ["SOURCE_DATE_EPOCH"]))
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def _kind(wheel: WheelFile, known: Mapping[str, Version], others: frozenset[str]) -> str:
    if wheel.sha256 in others:
        return "other"
    if (before := known.get(wheel.sha256)) is not None and before.kind != "unreadable":
        return before.kind
    return kind_of(wheel.path)


def _reusable(entry: Version | None, against: Sequence[Against]) -> Version | None:
    """Return a former entry if this redhost would find the same."""
    if entry is None or entry.kind == "unreadable" or entry.check.redhost != redhost.__version__:
        return None
    base = against_of(entry.fingerprint, against) if entry.kind == "expert" else None
    return entry if entry.check.against == (base.name if base else "") else None


def _against(wheel: WheelFile, entry: Version) -> Iterator[Against]:
    manifest = manifest_of(wheel.path) if entry.check.composable else None
    if manifest is not None:
        name = f"{entry.dist} {entry.version}"
        yield Against(name=name, files=BackboneFiles(manifest, {}, ""))


def _ordered(versions: Sequence[Version]) -> tuple[Version, ...]:
    """Return versions by distribution, the newest of each first."""
    by_file = sorted(versions, key=lambda v: v.file)
    newest = sorted(by_file, key=lambda v: number_of(v.version), reverse=True)
    return tuple(sorted(newest, key=lambda v: canonical(v.dist)))
