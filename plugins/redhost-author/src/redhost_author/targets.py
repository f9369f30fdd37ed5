"""The targets of `redhost check`: installed ids, wheels and folders, and their violations.

Only the named targets are read. Other installed experts' manifests are read as well, because two
packages may claim one id; their weights are not.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from redhost.registry.environment.installed import audit_installed
from redhost.registry.environment.status import check_packages
from redhost.registry.errors import MissingError, RedhostError, UnknownNameError, UsageError
from redhost.registry.home.revoked import Revocation
from redhost.registry.home.store import Store
from redhost.registry.package.checked import Violation
from redhost.registry.package.discover import (
    MANIFESTS,
    Kind,
    Package,
    canonical,
    discover_all,
    from_folder,
)
from redhost.registry.package.manifest import parse_backbone
from redhost.registry.package.readers import (
    BackboneFiles,
    ExpertFiles,
    PackageSource,
    read_backbone,
    read_expert,
    read_part,
)
from redhost.registry.package.rules import check_compatible
from redhost.registry.queries.inventory import installed_manifests
from redhost.registry.queries.settings import (
    choose_backbone,
    disabled_names,
    named_backbone,
    wanted_backbone,
)
from redhost.registry.wheel.policy import NameOwners
from redhost.registry.wheel.signing import PublicKey
from redhost.registry.wheel.wheel import read_wheel

Experts = list[tuple[str | None, Package]]
"""Installed experts with the ids in their manifests; None if a manifest cannot be read."""

Against = Callable[[PackageSource], BackboneFiles | None]
"""An expert's files → the installed backbone to check it against."""


@dataclass(frozen=True, eq=False)
class Target:
    """One thing to check.

    Attributes:
        name: What the user typed, or the package's id.
        source: A package, or its bytes by file name.
        files: The expert's bytes, if they could be read.
        violations: Those already found by reading it or its environment.
        backbone: The installed backbone to check against, None if there is none; if the target
            is a backbone, its own bytes.
        kind: Whether it is an expert or a backbone.
    """

    name: str
    source: PackageSource
    files: ExpertFiles | None
    violations: tuple[Violation, ...]
    backbone: BackboneFiles | None
    kind: Kind = "expert"


def resolve_targets(
    names: Sequence[str], *, home: Path, backbone: str | None, keys: Sequence[PublicKey] = ()
) -> tuple[Target, ...]:
    """Find and read the named targets; without names, every installed expert.

    Args:
        names: Installed ids, wheels and folders; of experts, or of backbones.
        home: The state folder.
        backbone: The backbone to check against, when several are installed; by default the one
            that an expert's manifest names, else the home's.
        keys: If there are any, one of these must have signed a wheel.

    Raises:
        UsageError: If a name is no file, folder or installed id.
        MissingError: If no names are given and nothing is installed, or if a backbone is named
            and none is installed.
        UnknownNameError: If the named backbone is not installed.
    """
    packages = discover_all()
    against = _backbones(packages["backbone"], backbone=backbone, home=home)
    # Not Path.exists: it raises if the name is too long.
    paths = {name for name in names if os.path.exists(name)}  # noqa: PTH110
    # Ids are in manifests: those of installed experts are read only if an id is needed.
    needs_ids = not names or not paths.issuperset(names)
    experts = sorted(
        ((m.id if m else None, p) for p, m in (installed_manifests() if needs_ids else ())),
        key=lambda pair: (pair[0] or pair[1].module, pair[1].dist),
    )
    ids = {expert_id or package.dist for expert_id, package in experts}
    if not names and not ids:
        raise MissingError("no experts are installed", hint="Name a wheel or a folder to check.")
    owners, targets = NameOwners(), list[Target]()
    for name in names or sorted(ids):
        if name in paths:
            targets.append(_from_path(name, against, keys))
        elif backbones := _named(name, packages["backbone"], experts):
            targets += (_backbone(name, p, audit_installed(p, owners)) for p in backbones)
        else:
            targets += _installed(name, experts, against, owners=owners, home=home)
    revoked = Store(home).revoked()
    return tuple(replace(t, violations=(*_revoked(t, revoked), *t.violations)) for t in targets)


def _revoked(target: Target, revoked: Mapping[str, Revocation]) -> tuple[Violation, ...]:
    """Return the violation of an expert or backbone whose content is called back."""
    files = target.backbone if target.kind == "backbone" else target.files
    entry = None if files is None else revoked.get(files.digest)
    return () if entry is None else (entry.violation(),)


def _backbones(installed: Sequence[Package], *, backbone: str | None, home: Path) -> Against:
    """Return a function that finds an expert's backbone; each backbone is read once."""
    load = cache(lambda package: read_backbone(package).value)

    def against(source: PackageSource) -> BackboneFiles | None:
        if backbone is not None:
            return load(choose_backbone(installed, backbone))
        with suppress(RedhostError):  # an expert can be valid without an installed backbone
            return load(choose_backbone(installed, None, named=named_backbone(source)))
        if not installed:
            return None
        with suppress(RedhostError):  # its own is not installed: check against the home's, or any
            return load(choose_backbone(installed, wanted_backbone(home)))
        return load(installed[0])

    return against


def static_check(target: Target) -> tuple[Violation, ...]:
    """Return all violations that can be found without computing anything."""
    if target.violations or target.files is None or target.backbone is None:
        return target.violations
    files = target.files
    return check_compatible(files.manifest, target.backbone.manifest, classes=files.classes)


def _installed(
    name: str, experts: Experts, against: Against, *, owners: NameOwners, home: Path
) -> Iterator[Target]:
    """Yield the packages installed under an id or a distribution's name.

    Two packages may claim one id: both are reported under it, each with its own reason.
    """
    named = [(i, package) for i, package in experts if name in {i, package.dist}]
    if not named:
        raise _unknown(name, {i or package.dist for i, package in experts})
    for expert_id, package in named:
        dist = canonical(package.dist)
        claims = [p for i, p in experts if i and (i == expert_id or canonical(p.dist) == dist)]
        duplicate = _duplicate(package, claims, home) if len(claims) > 1 else ()
        expert = read_expert(package)
        violations = (*duplicate, *expert.violations, *audit_installed(package, owners))
        yield Target(name, package, expert.value, violations, against(package))


def _duplicate(package: Package, claims: Sequence[Package], home: Path) -> tuple[Violation, ...]:
    """Return the violation if other valid, enabled packages claim its id or distribution."""
    statuses = check_packages(claims, backbone=None, disabled=disabled_names(home))
    of_it = (s for s in statuses if s.package == package)
    return tuple(v for s in of_it for v in s.violations if v.code == "duplicate_id")


def _from_path(name: str, against: Against, keys: Sequence[PublicKey]) -> Target:
    path = Path(name)
    source: PackageSource
    if path.is_dir():
        source = package = from_folder(path)
        if not any((package.folder or path).joinpath(x).is_file() for x in MANIFESTS.values()):
            return Target(name, source, None, (_no_package(name),), None)
    else:
        wheel = read_wheel(path, keys=keys)
        if wheel.value is None:
            return Target(str(path), {}, None, wheel.violations, None)
        source, package = wheel.value.files, wheel.value.package
    if package.kind == "backbone":
        return _backbone(str(path), source)
    expert = read_expert(source)
    return Target(str(path), source, expert.value, expert.violations, against(source))


def _no_package(name: str) -> Violation:
    """Return the violation of a folder without a manifest, which may not be trained yet."""
    with suppress(OSError, ValueError):
        if "[tool.redhost.expert]" in (Path(name) / "pyproject.toml").read_text("utf-8"):
            expected, hint = "a trained expert", f"Run 'redhost train-expert {name} --data FILE'."
            return Violation("package_files", name, expected, "a project not trained yet", hint)
    expected = " or ".join(MANIFESTS.values())
    hint = "Name a package's folder, or a project that has one under src/."
    return Violation("package_files", name, f"{expected}, here or under src/", "neither", hint)


def _named(name: str, backbones: Sequence[Package], experts: Experts) -> list[Package]:
    """Return the installed backbones with a name, unless an expert has it."""
    if any(name in {i, package.dist} for i, package in experts):
        return []
    ids = {p: read_part(p, MANIFESTS["backbone"]).then(parse_backbone).value for p in backbones}
    return [p for p, manifest in ids.items() if name in {p.dist, manifest and manifest.id}]


def _backbone(name: str, source: PackageSource, also: tuple[Violation, ...] = ()) -> Target:
    backbone = read_backbone(source)
    return Target(
        name, source, None, (*backbone.violations, *also), backbone.value, kind="backbone"
    )


def _unknown(name: str, installed: Iterable[str]) -> UsageError:
    """Return the error for an unknown name; its spelling shows if a path or an id was meant."""
    if Path(name).name == name and not name.endswith(".whl"):
        return UnknownNameError("expert", name, installed)
    hint = "Give the path of a wheel or of a package's folder, or an installed id."
    return UsageError(f"there is no wheel or folder {name}", hint=hint)
