"""What `redhost check` looks at: installed ids, wheels and folders, and their static checks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .contract import check_compatible
from .discover import Package, discover, from_folder
from .errors import MissingError, RedhostError, UnknownNameError, UsageError
from .files import BackboneFiles, ExpertFiles, read_backbone, read_expert
from .installed import audit_installed
from .inventory import take_inventory
from .keys import PublicKey
from .settings import choose_backbone
from .violations import Violation
from .wheels import Wheel, read_wheel

__all__ = ["Target", "resolve_targets", "static_check"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Target:
    """One thing to check.

    Attributes:
        name: What the user typed, or the package's id.
        files: The expert's bytes, where they could be read.
        found: What is wrong already: the outcome of reading, or of the whole environment.
        backbone: The installed backbone to check against; None where there is none.
        names: Every file beside the manifest, named by it or not.
    """

    name: str
    files: ExpertFiles | None
    found: tuple[Violation, ...]
    backbone: BackboneFiles | None
    names: tuple[str, ...] = ()


def resolve_targets(
    names: Sequence[str], *, home: Path, backbone: str | None, keys: Sequence[PublicKey] = ()
) -> tuple[Target, ...]:
    """Find what the names mean; no names mean every installed expert.

    Args:
        names: Installed ids, wheels and folders.
        home: The state folder.
        backbone: Which backbone to check against, when several are installed.
        keys: A wheel must be signed by one of these, if there are any.

    Raises:
        UsageError: If a name is no file, folder or installed id.
        MissingError: If no names are given and nothing is installed.
    """
    against = _installed_backbone(backbone)
    listings = take_inventory(home, backbone=backbone, remember=False).listings
    installed = {x.id or x.package.dist: x for x in listings}
    if not names and not installed:
        raise MissingError("no experts are installed", hint="Name a wheel or a folder to check.")
    targets = []
    for name in names or sorted(installed):
        if name in names and _exists(name):
            targets.append(_from_path(Path(name), against, keys))
            continue
        # Two packages may claim one id: each is reported under the id with its own reason.
        same = [x for x in listings if name in {x.id, x.package.dist}]
        if not same:
            raise _unknown(name, installed)
        for listing in same:
            read = _source(listing.package, against, name=name)
            environment = tuple(v for v in listing.violations if v.code == "duplicate_id")
            targets.append(
                Target(
                    name=name,
                    files=read.files,
                    found=(*environment, *read.found, *audit_installed(listing.package)),
                    backbone=against,
                    names=read.names,
                )
            )
    return tuple(targets)


def _unknown(name: str, installed: Iterable[str]) -> UsageError:
    """Return what to raise for a name that is nothing: a path is told from an id by its looks."""
    if Path(name).name == name and not name.endswith(".whl"):
        return UnknownNameError("expert", name, installed)
    hint = "Give the path of a wheel or of a package's folder, or an installed id."
    return UsageError(f"there is no wheel or folder {name}", hint=hint)


def static_check(target: Target) -> tuple[Violation, ...]:
    """Return every violation that can be seen without computing anything."""
    if target.found or target.files is None or target.backbone is None:
        return target.found
    files = target.files
    return check_compatible(files.manifest, target.backbone.manifest, classes=files.classes)


def _exists(name: str) -> bool:
    """Tell whether a name is that of a file or folder; what cannot be looked at is none."""
    try:
        return Path(name).exists()
    except OSError:
        return False


def _from_path(path: Path, against: BackboneFiles | None, keys: Sequence[PublicKey]) -> Target:
    if path.is_dir():
        return _source(from_folder(path), against, name=str(path))
    wheel = read_wheel(path, keys=keys)
    if isinstance(wheel, Wheel):
        return _source(wheel.files, against, name=str(path))
    return Target(name=str(path), files=None, found=wheel, backbone=against)


def _source(
    source: Package | Mapping[str, bytes], against: BackboneFiles | None, *, name: str
) -> Target:
    files = read_expert(source)
    if isinstance(files, ExpertFiles):
        return Target(name=name, files=files, found=(), backbone=against, names=_names(source))
    return Target(name=name, files=None, found=files, backbone=against)


def _names(source: Package | Mapping[str, bytes]) -> tuple[str, ...]:
    """Return the names of all files of a package, those in subfolders by their path."""
    if not isinstance(source, Package):
        return tuple(sorted(source))
    folder = source.folder
    if folder is None:
        return ()
    files = (p.relative_to(folder) for p in folder.rglob("*") if p.is_file())
    return tuple(sorted(p.as_posix() for p in files if "__pycache__" not in p.parts))


def _installed_backbone(wanted: str | None) -> BackboneFiles | None:
    try:
        files = read_backbone(choose_backbone(discover("backbone"), wanted))
    except RedhostError:
        return None
    return files if isinstance(files, BackboneFiles) else None
