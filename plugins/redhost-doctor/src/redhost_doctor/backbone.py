"""The check of the backbone: one is installed, chosen, whole, and the one that is composed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from redhost.errors import ContractError, SettingsError, StoreError, UnknownNameError
from redhost.registry.environment.installed import audit_installed
from redhost.registry.errors import RedhostError, short
from redhost.registry.home.composition import LOCK, read_lock
from redhost.registry.home.questions import root_of
from redhost.registry.home.store import Store
from redhost.registry.package.discover import Package, canonical, discover
from redhost.registry.package.manifest import BackboneManifest, parts_of
from redhost.registry.package.readers import read_backbone
from redhost.registry.queries.settings import installed_backbone
from redhost_doctor.base import damage_of_base
from redhost_doctor.composed import Comparison, compositions
from redhost_doctor.finding import Finding, Subject, fail, ok, warn
from redhost_doctor.install import install_command, restore_command
from redhost_doctor.shell import pip_command
from redhost_doctor.source import EXAMPLE, unknown_source


def check_backbone(subject: Subject) -> Iterator[Finding]:
    """Check the backbone of each question's composition."""
    findings, names = list[Finding](), set[str]()
    for composed in compositions(subject):
        finding = _problem(composed) or _difference(composed) or _damage(composed, subject)
        if finding is not None and finding not in findings:
            findings.append(finding)
        if (manifest := composed.inventory.backbone) is not None:
            names.add(f"{manifest.id} ({short(manifest.fingerprint)})")
    yield from findings or [ok("backbone", ", ".join(sorted(names)))]


def _problem(composed: Comparison) -> Finding | None:
    """Return why no backbone could be chosen, if none could."""
    problem, record = composed.inventory.problem, composed.record
    if problem is None:
        return None
    text = composed.about + problem.reason
    if isinstance(problem, ContractError) and record is None:  # several packages of one name
        *_, last = sorted(p.dist for p in discover("backbone"))
        return fail("backbone", text, mend=pip_command("uninstall", "--yes", last))
    if isinstance(problem, SettingsError):
        mend = composed.command("recompose", "--backbone", _mostly_wanted(composed))
        return warn("backbone", text, then=mend)
    if isinstance(problem, ContractError) and _is_revoked(composed):
        return fail("backbone", f"{text}. {problem.hint}")
    dist, version = _dist(composed, problem)
    for package in discover("backbone"):
        if canonical(package.dist) == canonical(dist):
            return _failing(composed, text, package.dist, _restore(composed, package))
    return _failing(composed, text, dist, install_command(dist, version))


def _is_revoked(composed: Comparison) -> bool:
    """Return whether the chosen backbone is revoked: no other copy of it helps."""
    package = composed.inventory.package
    read = installed_backbone(package).value if package is not None else None
    return read is not None and read[1] in composed.revoked


def _difference(composed: Comparison) -> Finding | None:
    """Return how the installed backbone differs from the composed one, if it does."""
    record, inventory = composed.record, composed.inventory
    manifest, package = inventory.backbone, inventory.package
    if record is None or manifest is None or package is None:
        return None
    was, now = record.backbone.fingerprint, manifest.fingerprint
    if was != now:
        text = f"{package} is another backbone ({short(now)}) than the composed one ({short(was)})"
        mend = _restore(composed, package)
        if package.version != record.backbone.version:
            mend = install_command(record.backbone.dist, record.backbone.version)
        return _failing(composed, composed.about + text, record.backbone.dist, mend)
    if record.backbone.digest and inventory.digest not in {None, record.backbone.digest}:
        text = f"another build of {package} is installed than the composed one"
        return warn("backbone", composed.about + text, then=composed.command("recompose"))
    return None


def _damage(composed: Comparison, subject: Subject) -> Finding | None:
    """Return what is wrong with the files of the installed backbone, if anything is."""
    package, manifest = composed.inventory.package, composed.inventory.backbone
    if package is None or manifest is None or package.folder is None:
        return None
    if manifest.base.kind == "file" and not Path(manifest.base.id).is_file():
        return fail("backbone", f"{package} reads {manifest.base.id}, which is not there", mend="")
    if manifest.base.kind == "dist":
        damage = damage_of_base(manifest.base, deep=subject.deep)
        if damage is not None:
            return fail("backbone", f"{package}: {damage.text}", mend=damage.mend)
    fault = _fault(package, package.folder, manifest, deep=subject.deep)
    if fault is None:
        return None
    mend = _restore(composed, package)
    return _failing(composed, f"{package}: {fault}", package.dist, mend)


def _failing(composed: Comparison, text: str, dist: str, mend: str) -> Finding:
    """Return a failure with the command that mends it; without one, what may, or what is missing.

    `redhost sync` compares what it obtains with the lock, wherever that is from.
    """
    text += unknown_source(mend, dist)
    return fail("backbone", text, mend=mend, then="" if mend else composed.sync())


def _fault(package: Package, folder: Path, manifest: BackboneManifest, *, deep: bool) -> str | None:
    """Return what is wrong with a backbone's own files, if anything is."""
    if not deep:
        elsewhere = manifest.base.files if manifest.base.kind == "dist" else {}
        names = (p.file for p in parts_of(manifest) if p.file not in elsewhere)
        missing = (name for name in names if not (folder / name).is_file())
        return next((f"{name} is not there" for name in missing), None)
    violations = (*read_backbone(package).violations, *audit_installed(package))
    return violations[0].reason if violations else None


def _restore(composed: Comparison, package: Package) -> str:
    """Return the command that puts the composed backbone back."""
    record = composed.record
    store = Store(root_of(composed.where)) if record and record.backbone.digest else None
    digest = record.backbone.digest if record else ""
    name = record.backbone.id if record else ""
    mend = restore_command(package, store=store, digest=digest, name=name)
    return mend or install_command(package.dist, package.version)


def _dist(composed: Comparison, problem: RedhostError) -> tuple[str, str]:
    """Return the distribution of the backbone that is missing, and its version if it is known."""
    if composed.record is not None:
        return composed.record.backbone.dist, composed.record.backbone.version
    try:
        lock = read_lock(composed.where / LOCK)
    except StoreError:
        lock = None
    if lock is not None and lock.backbone.dist:
        return lock.backbone.dist, lock.backbone.version
    named = isinstance(problem, UnknownNameError)
    return (f"red-backbone-{_mostly_wanted(composed)}" if named else EXAMPLE), ""


def _mostly_wanted(composed: Comparison) -> str:
    """Return the backbone that most installed experts were made for, or any that is installed."""
    statuses = composed.inventory.statuses
    wanted = Counter(x.manifest.backbone.name for x in statuses if x.manifest)
    dists = [p.dist for p in discover("backbone")] or [EXAMPLE]
    return wanted.most_common(1)[0][0] if wanted else dists[0]
