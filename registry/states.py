"""How far each package gets: discovered → valid → compatible → enabled → attached.

A failure is a value on the rung where it happened: one broken package never stops a command that
does not need it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypedDict

from .contract import bus_violation, check_compatible
from .discover import MANIFESTS, Package, canonical
from .errors import ContractError, RedhostError
from .files import ExpertFiles, read_expert
from .footprint import file_names
from .integrity import MAX_FILE
from .manifest import BackboneManifest, ExpertManifest, parse_expert
from .owners import Owners
from .sources import reader
from .verdicts import Stamp, Verdict, VerdictMemory, stamps
from .violations import Violation

__all__ = ["Listing", "Shown", "State", "list_files", "survey"]

State = Literal["discovered", "valid", "compatible", "enabled", "attached"]


class Shown(TypedDict):
    """A package as programs see it.

    Attributes:
        id: The expert's id, as far as its manifest could be read.
        dist: The distribution that brings it.
        version: The distribution's version.
        state: The last rung it reached.
        code: A stable word for its first failure; null when nothing failed.
        reason: The failure as one line.
        hint: What to do about it.
        form: The expert's form, from its manifest like the next three.
        rank: Its rank R.
        writes: The space it writes.
        backbone: The id of the backbone it was trained on.
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
    editable: bool


@dataclass(frozen=True)
class Listing:
    """A package and the last rung it reached.

    Attributes:
        package: What was found.
        id: The expert's id, as far as the manifest could be read.
        manifest: The manifest, likewise.
        digest: The digest of a valid package's content.
        state: The last rung reached.
        violations: What kept it from the next one; empty when nothing failed.
        files: The bytes of one that is not installed: from a wheel or from the store.
        wheel: The sha256 of the wheel it came from, where that is known.
        signer: The fingerprint of the key that verified that wheel, likewise.
    """

    package: Package
    id: str | None = None
    manifest: ExpertManifest | None = None
    digest: str | None = None
    state: State = "discovered"
    violations: tuple[Violation, ...] = ()
    files: ExpertFiles | None = None
    wheel: str = ""
    signer: str = ""

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
    def name(self) -> str:
        """How errors speak of it: ``expert 'range1' (red-expert-range1 0.1.0)``."""
        return f"expert {self.id or self.package.module!r} ({self.package})"

    def error(self) -> RedhostError:
        """Return the first failure as an exception, for a command that needs this package."""
        who = f"{self.name} was not attached"
        return self.violations[0].error(who) if self.violations else ContractError(who)

    def to_json(self) -> Shown:
        """Return what ``list-experts --json`` prints."""
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
            "editable": self.package.editable,
        }


def survey(
    packages: Iterable[Package],
    *,
    backbone: BackboneManifest | None,
    disabled: Collection[str] = (),
    attached: Mapping[str, str] | None = None,
    memory: VerdictMemory | None = None,
) -> tuple[Listing, ...]:
    """Take each package up the ladder as far as it gets.

    Args:
        packages: What `discover` found.
        backbone: The backbone at hand; without one no package gets beyond ``valid``.
        disabled: Ids and distributions that the user disabled. A distribution's name tells two
            packages of one id apart.
        attached: Expert id → digest in the current composition. A package with another digest
            is a pending update: it stays ``enabled``.
        memory: Verdicts of earlier surveys; only for showing, never for attaching.

    Returns:
        A listing per package, sorted by id.
    """
    off = {*disabled, *map(canonical, disabled)}
    owners = Owners()
    judged = [_judge(package, memory, owners) for package in packages]
    providers = _providers(listing for listing, _ in judged if not _is_off(listing, off))
    found = []
    for listing, classes in judged:
        one = _fit(listing, classes, backbone, None if _is_off(listing, off) else providers)
        found.append(_switch(one, off, attached or {}))
    if memory is not None:
        memory.save()
    return tuple(sorted(found, key=lambda one: (one.id or one.package.module, one.package.dist)))


def list_files(
    package: Package,
    files: ExpertFiles,
    *,
    backbone: BackboneManifest,
    disabled: Collection[str] = (),
    wheel: str = "",
    signer: str = "",
) -> Listing:
    """List an expert that is at hand as bytes, judged against a backbone.

    Args:
        package: Who brought it.
        files: Its bytes, already valid.
        backbone: The backbone at hand.
        disabled: Ids and distributions that the user disabled.
        wheel: The sha256 of its wheel, where that is known.
        signer: The fingerprint of the key that verified its wheel, likewise.
    """
    manifest, digest = files.manifest, files.digest
    listing = Listing(package, manifest.id, manifest, digest, "valid", (), files, wheel, signer)
    off = {*disabled, *map(canonical, disabled)}
    return _switch(_fit(listing, files.classes, backbone, None), off, {})


def _judge(
    package: Package, memory: VerdictMemory | None, owners: Owners
) -> tuple[Listing, int | None]:
    """Take a package to ``valid`` if it is; return also the C of its logits, if it has any."""
    raw = reader(package, limit=MAX_FILE)(MANIFESTS["expert"], "package_files")
    manifest = raw if isinstance(raw, Violation) else parse_expert(raw)
    if isinstance(manifest, Violation):
        return Listing(package, violations=(manifest, *_audit(package, owners))), None
    verdict = _verdict(package, manifest, memory, owners)
    listing = Listing(package, manifest.id, manifest, verdict.digest, "valid", verdict.violations)
    return (
        replace(listing, state="discovered") if verdict.violations else listing
    ), verdict.classes


def _verdict(
    package: Package, manifest: ExpertManifest, memory: VerdictMemory | None, owners: Owners
) -> Verdict:
    if memory is None or package.folder is None:
        return _read(package, owners)
    seen = _stamps(package, package.folder, manifest)
    known = memory.recall(package.folder, seen)
    if known is not None:
        return known
    verdict = _read(package, owners)
    memory.remember(package.folder, seen, verdict)
    return verdict


def _stamps(package: Package, folder: Path, manifest: ExpertManifest) -> tuple[Stamp, ...]:
    """Return the stamp of everything that the checks of a package look at.

    The site folder's own stamp changes with every distribution that comes or goes.
    """
    if package.info is not None and not package.editable:
        return stamps(package.info.parent, ["", *file_names(package)])
    named = (MANIFESTS["expert"], manifest.weights.file, manifest.canary.file, manifest.card.file)
    return stamps(folder, [name for name in named if name])


def _read(package: Package, owners: Owners) -> Verdict:
    found = read_expert(package)
    audited = _audit(package, owners)
    if isinstance(found, ExpertFiles) and not audited:
        return Verdict(digest=found.digest, classes=found.classes)
    return Verdict(violations=audited if isinstance(found, ExpertFiles) else (*found, *audited))


def _audit(package: Package, owners: Owners) -> tuple[Violation, ...]:
    from .installed import audit_installed  # mostly remembered: then it is not even loaded

    return audit_installed(package, owners)


def _fit(
    listing: Listing,
    classes: int | None,
    backbone: BackboneManifest | None,
    providers: Mapping[str, list[Package]] | None,
) -> Listing:
    """Take a valid package to ``compatible``, if it fits."""
    manifest = listing.manifest
    if listing.violations or manifest is None:
        return listing
    if providers is not None and (wrong := _duplicate(listing, providers)):
        return replace(listing, violations=(wrong,))
    if backbone is None:
        return replace(listing, violations=bus_violation(manifest.bus_api, who="the expert"))
    if problems := check_compatible(manifest, backbone, classes=classes):
        return replace(listing, violations=problems)
    return replace(listing, state="compatible")


def _switch(listing: Listing, off: set[str], attached: Mapping[str, str]) -> Listing:
    """Take a compatible package to the top, unless the user switched it off."""
    if _is_off(listing, off):
        return replace(listing, violations=(_disabled(listing, off), *listing.violations))
    if listing.state != "compatible":
        return listing
    same = attached.get(listing.id or "") == listing.digest
    return replace(listing, state="attached" if same else "enabled")


def _providers(listings: Iterable[Listing]) -> Mapping[str, list[Package]]:
    """Return id → the valid packages that provide it."""
    found: defaultdict[str, list[Package]] = defaultdict(list)
    for listing in listings:
        if listing.id is not None and listing.state == "valid":
            found[listing.id].append(listing.package)
    return found


def _duplicate(listing: Listing, providers: Mapping[str, list[Package]]) -> Violation | None:
    packages = providers[listing.id or ""]
    if len(packages) == 1:
        return None
    names = " and ".join(sorted(map(str, packages)))
    hint = "Uninstall one, or disable one with 'redhost disable DIST'."
    return Violation("duplicate_id", "id", f"one package for {listing.id!r}", names, hint)


def _disabled(listing: Listing, off: set[str]) -> Violation:
    name = listing.id if listing.id in off else listing.package.dist
    hint = f"Enable it with 'redhost enable {name}'."
    return Violation("disabled", "state", "an enabled expert", "disabled by you", hint)


def _is_off(listing: Listing, off: set[str]) -> bool:
    return bool(off) and (listing.id in off or canonical(listing.package.dist) in off)
