"""The state each package reaches: discovered → valid → compatible → enabled → attached.

A failure is a value at the state where it occurred: one broken package never stops a command that
does not need it. Whether a package is valid is cached by the stamps of its files.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal, TypedDict

from msgspec import Struct
from msgspec.structs import replace

from .. import atomic
from ..errors import ContractError, RedhostError, StoreError
from ..home.composition import Provenance
from ..home.revoked import Revocation
from ..package.checked import Violation
from ..package.discover import MANIFESTS, Package, canonical
from ..package.manifest import BackboneManifest, ExpertManifest, parse_expert, parts_of
from ..package.readers import ExpertFiles, read_expert, read_part
from ..package.rules import bus_violation, check_compatible
from ..wheel.policy import UNSETTLED, FileStamp, NameOwners, file_stamps
from .installed import audit_installed, installed_files

State = Literal["discovered", "valid", "compatible", "enabled", "attached"]


class PackageStatusJson(TypedDict):
    """The JSON form of a package's status.

    Attributes:
        id: The expert's id, if its manifest could be read.
        dist: The distribution that contains it.
        version: The distribution's version.
        state: The last state it reached.
        code: A stable word for its first failure; null if nothing failed.
        reason: The failure as one line.
        hint: What to do about it.
        form: The expert's form, from its manifest like the next three.
        rank: Its rank R.
        writes: The space it writes.
        backbone: The id of the backbone it was trained on.
        question: The question it answers; null for the default question.
        editable: Whether its checkout is installed in place (PEP 610).
    """

    id: str | None
    dist: str
    version: str
    state: State
    code: str | None
    reason: str | None
    hint: str | None
    form: str | None
    rank: int | None
    writes: str | None
    backbone: str | None
    question: str | None
    editable: bool


class PackageStatus(Struct, frozen=True):
    """A package and the last state it reached.

    Attributes:
        package: The package.
        id: The expert's id, if the manifest could be read.
        manifest: The manifest, if it could be read.
        digest: The digest of a valid package's content.
        state: The last state reached.
        violations: Why it did not reach the next state; empty if nothing failed.
        files: The bytes that were checked; None if a result of an earlier check was recalled.
        origin: Where those bytes came from (the wheel and its signer); None if not known.
    """

    package: Package
    id: str | None = None
    manifest: ExpertManifest | None = None
    digest: str | None = None
    state: State = "discovered"
    violations: tuple[Violation, ...] = ()
    files: ExpertFiles | None = None
    origin: Provenance | None = None

    @property
    def code(self) -> str | None:
        """The stable code of the first failure."""
        return self.violations[0].code if self.violations else None

    @property
    def reason(self) -> str | None:
        """The first failure as one line."""
        return self.violations[0].reason if self.violations else None

    @property
    def hint(self) -> str | None:
        """What to do about the first failure."""
        return self.violations[0].hint if self.violations else None

    @property
    def question(self) -> str | None:
        """The question it answers, if the manifest could be read; None for the default question."""
        return (self.manifest.question or None) if self.manifest else None

    @property
    def name(self) -> str:
        """Its name in errors: ``expert 'range1' (red-expert-range1 0.1.0)``."""
        return f"expert {self.id or self.package.module!r} ({self.package})"

    def error(self) -> RedhostError:
        """Return the first failure as an exception, for a command that needs this package."""
        problem = f"{self.name} was not attached"
        return self.violations[0].error(problem) if self.violations else ContractError(problem)

    def to_json(self) -> PackageStatusJson:
        """Return the JSON form for ``list-experts --json``."""
        manifest = self.manifest
        return {
            "id": self.id,
            "dist": self.package.dist,
            "version": self.package.version,
            "state": self.state,
            "code": self.code,
            "reason": self.reason,
            "hint": self.hint,
            "form": manifest.form if manifest else None,
            "rank": manifest.rank if manifest else None,
            "writes": manifest.writes.space if manifest else None,
            "backbone": manifest.backbone.name if manifest else None,
            "question": self.question,
            "editable": self.package.editable,
        }


def check_packages(
    packages: Iterable[Package],
    *,
    backbone: BackboneManifest | None,
    disabled: Collection[str] = (),
    revoked: Mapping[str, Revocation] | None = None,
    attached: Mapping[str, str] | None = None,
    cache: ValidationCache | None = None,
) -> tuple[PackageStatus, ...]:
    """Determine the last state that each package reaches.

    Args:
        packages: Installed experts.
        backbone: The backbone in use; without one no package gets beyond ``valid``.
        disabled: Ids and distributions that the user disabled. The name of a distribution
            distinguishes two packages with the same id.
        revoked: What nobody may use, by digest.
        attached: Expert id → digest in the current composition. A package with another digest
            is a pending update: it stays ``enabled``.
        cache: Results of earlier checks; used only for display, never for attaching.

    Returns:
        The status of each package, sorted by id.
    """
    off = {*disabled, *map(canonical, disabled)}
    owners = NameOwners()
    checked = [_validate(package, cache, owners) for package in packages]
    if cache is not None:
        cache.save()
    providers: defaultdict[tuple[str, str | None], list[Package]] = defaultdict(list)
    for status, _ in checked:
        if status.state == "valid" and not _is_off(status, off):
            for name in _names(status):
                providers[name].append(status.package)
    rivals = [max((providers[name] for name in _names(s)), key=len) for s, _ in checked]
    statuses = [
        _advance(status, classes, backbone, off, revoked, rivals=others, attached=attached)
        for (status, classes), others in zip(checked, rivals, strict=True)
    ]
    return tuple(sorted(statuses, key=lambda s: (s.id or s.package.module, s.package.dist)))


def _names(status: PackageStatus) -> tuple[tuple[str, str | None], ...]:
    """Return the names that only one package may have."""
    return ("id", status.id), ("distribution", canonical(status.package.dist))


def status_of_files(
    package: Package,
    files: ExpertFiles,
    *,
    backbone: BackboneManifest,
    disabled: Collection[str] = (),
    revoked: Mapping[str, Revocation] | None = None,
    origin: Provenance | None = None,
) -> PackageStatus:
    """Return the status of an expert that is given as bytes.

    Args:
        package: The package that contains it.
        files: Its bytes, already valid.
        backbone: The backbone in use.
        disabled: Ids and distributions that the user disabled.
        revoked: What nobody may use, by digest.
        origin: Where the bytes came from, if known.
    """
    manifest = files.manifest
    status = PackageStatus(
        package, manifest.id, manifest, files.digest, "valid", files=files, origin=origin
    )
    return _advance(
        status, files.classes, backbone, {*disabled, *map(canonical, disabled)}, revoked
    )


def _validate(
    package: Package, cache: ValidationCache | None, owners: NameOwners
) -> tuple[PackageStatus, int | None]:
    """Check a package by itself; return its status, and the C of its logits if it has any."""
    parsed = read_part(package, MANIFESTS["expert"]).then(parse_expert)
    if parsed.value is None:
        violations = (*parsed.violations, *audit_installed(package, owners))
        return PackageStatus(package, violations=violations), None
    manifest, folder, files = parsed.value, package.folder, None
    if cache is None or folder is None:
        result, files = _read(package, owners)
    else:
        # Taken before the files are read, so that a later change causes a new read.
        stamps = _package_stamps(package, folder, manifest)
        cached = cache.recall(folder, stamps)
        result = cached or _read(package, owners)[0]
        if cached is None:
            cache.remember(folder, stamps, result)
    state: State = "discovered" if result.violations else "valid"
    status = PackageStatus(
        package, manifest.id, manifest, result.digest, state, result.violations, files=files
    )
    return status, result.classes


def _package_stamps(
    package: Package, folder: Path, manifest: ExpertManifest
) -> tuple[FileStamp, ...]:
    """Return the stamps of all files that the checks of a package depend on.

    The site folder's own stamp changes when any distribution is added or removed.
    """
    site = package.info.parent if package.info is not None else folder
    if package.info is not None and not package.editable:
        return file_stamps(site, ["", *installed_files(package)])
    files = [MANIFESTS["expert"], *(p.file for p in parts_of(manifest))]
    return (*file_stamps(site, [""]), *file_stamps(folder, files))


def _read(package: Package, owners: NameOwners) -> tuple[ValidationResult, ExpertFiles | None]:
    """Read a package and audit the very bytes that were read."""
    expert = read_expert(package)
    read = expert.value.files if expert.value else {}
    violations = (*expert.violations, *audit_installed(package, owners, read=read))
    if expert.value is None or violations:
        return ValidationResult(violations=violations), None
    return ValidationResult(digest=expert.value.digest, classes=expert.value.classes), expert.value


def _advance(
    status: PackageStatus,
    classes: int | None,
    backbone: BackboneManifest | None,
    off: Collection[str],
    revoked: Mapping[str, Revocation] | None,
    *,
    rivals: Collection[Package] = (),
    attached: Mapping[str, str] | None = None,
) -> PackageStatus:
    """Determine the last state that a valid package reaches.

    Args:
        status: The package's status, checked by itself.
        classes: C of an expert that writes logits.
        backbone: The backbone in use.
        off: What the user disabled, with distributions also in canonical form.
        revoked: What nobody may use, by digest.
        rivals: The packages with this id, or distribution, that are valid and not disabled.
        attached: Expert id → digest in the current composition.
    """
    manifest, state, violations = status.manifest, status.state, status.violations
    is_off = _is_off(status, off)
    if not violations and manifest is not None:
        if len(rivals) > 1 and not is_off:
            violations = (_duplicate(status, rivals),)
        elif backbone is None:
            violations = bus_violation(manifest.bus_api, "the expert")
        else:
            violations = check_compatible(manifest, backbone, classes=classes)
            state = state if violations else "compatible"
    if is_off:
        name = status.id if status.id in off else status.package.dist
        hint = f"Enable it with 'redhost enable {name}'."
        disabled = Violation("disabled", "state", "an enabled expert", "disabled by you", hint)
        return replace(status, state=state, violations=(disabled, *violations))
    if called_back := (revoked or {}).get(status.digest or ""):
        return replace(status, state=state, violations=(called_back.violation(), *violations))
    if state == "compatible":
        state = "attached" if (attached or {}).get(status.id or "") == status.digest else "enabled"
    return replace(status, state=state, violations=violations)


def _duplicate(status: PackageStatus, rivals: Collection[Package]) -> Violation:
    """Return the violation of packages with one id, or of one distribution's name."""
    names, hint = sorted(map(str, rivals)), "or disable one with 'redhost disable DIST'"
    if len({canonical(p.dist) for p in rivals}) == 1:
        names, hint = sorted(str(p.info) for p in rivals), "or remove its folder by hand"
    return Violation(
        "duplicate_id",
        "id",
        f"one package for {status.id!r}",
        " and ".join(names),
        f"Uninstall one, {hint}.",
    )


def _is_off(status: PackageStatus, off: Collection[str]) -> bool:
    return bool(off) and (status.id in off or canonical(status.package.dist) in off)


class ValidationResult(Struct, frozen=True, kw_only=True):
    """The result of checking a package's own files: its digest, or its violations."""

    digest: str | None = None
    classes: int | None = None
    violations: tuple[Violation, ...] = ()


class _Entry(Struct, frozen=True, kw_only=True):
    stamps: tuple[FileStamp, ...]
    result: ValidationResult


class _Entries(Struct, frozen=True, kw_only=True):
    schema: Literal["redhost.verdicts/1"] = "redhost.verdicts/1"
    checks: tuple[FileStamp, ...]
    entries: dict[str, _Entry]


class ValidationCache:
    """Results by folder, valid as long as the stamps of all files stay the same.

    Results of another version's checks are dropped: the registry's own code has stamps too.

    Args:
        path: ``HOME/cache/verdicts.json``; a damaged file counts as empty.
    """

    def __init__(self, path: Path) -> None:
        registry = Path(__file__).parents[1]  # any part of it may affect the checks
        code = (p.relative_to(registry).as_posix() for p in registry.glob("*/*.py"))
        self.path = path
        self._checks = file_stamps(registry, code)
        self._entries: dict[str, _Entry] = {}
        self._changed = False
        try:
            cached = atomic.read_struct(path, _Entries, hint="It is written again.")
        except StoreError:
            self._changed = True  # so that the damage is counted once
            atomic.count_damage(path.parent)
        else:
            if cached is not None and cached.checks == self._checks:
                self._entries = cached.entries

    def recall(self, folder: Path, stamps: tuple[FileStamp, ...]) -> ValidationResult | None:
        """Return the result for a folder whose files still have these stamps."""
        entry = self._entries.get(str(folder))
        return entry.result if entry is not None and entry.stamps == stamps else None

    def remember(
        self, folder: Path, stamps: tuple[FileStamp, ...], result: ValidationResult
    ) -> None:
        """Store a result; the stamps must have been taken before the files were read."""
        newest = max((max(stamp[3:]) for stamp in stamps), default=0)
        names = "".join(stamp[0] for stamp in stamps)  # a name that is not text cannot be written
        if newest > time.time_ns() - UNSETTLED or not names.isprintable():
            return
        self._entries[str(folder)] = _Entry(stamps=stamps, result=result)
        self._changed = True

    def save(self) -> None:
        """Write the cache if it changed; if the home is read-only, later runs only take longer."""
        if not self._changed:
            return
        present = {name: entry for name, entry in self._entries.items() if Path(name).is_dir()}
        with suppress(StoreError):
            atomic.write_struct(self.path, _Entries(checks=self._checks, entries=present))
            self._changed = False
