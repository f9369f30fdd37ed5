"""What is installed here, judged against the backbone at hand: the answer to `list-experts`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .composition import Composition
from .disabled import Disabled
from .discover import MANIFESTS, Package, discover_all
from .errors import IntegrityError, RedhostError, UnknownNameError
from .generations import Generations
from .manifest import MAX_BYTES, BackboneManifest, parse_backbone
from .settings import choose_backbone
from .sources import reader
from .states import Listing, survey
from .verdicts import VerdictMemory

__all__ = ["Inventory", "current_record", "read_backbone_manifest", "take_inventory"]


@dataclass(frozen=True)
class Inventory:
    """Installed experts, and the backbone they were judged against.

    Attributes:
        listings: One for each installed expert package, sorted by id.
        backbone: The chosen backbone's manifest; None when there is none to judge against.
        problem: Why there is none.
    """

    listings: tuple[Listing, ...]
    backbone: BackboneManifest | None
    problem: RedhostError | None


def take_inventory(home: Path, *, backbone: str | None = None, remember: bool = True) -> Inventory:
    """List every installed expert with its state, without importing any.

    Args:
        home: The state folder: disabled ids, the current generation, remembered verdicts.
        backbone: The backbone wanted; by default the only one installed.
        remember: Whether verdicts on unchanged files may be remembered ones.
    """
    manifest, problem, found = None, None, discover_all()
    try:
        manifest = read_backbone_manifest(choose_backbone(found["backbone"], backbone))
    except RedhostError as e:
        problem = e  # an expert can be valid without a backbone to fit
    listings = survey(
        found["expert"],
        backbone=manifest,
        disabled=Disabled(home).names(),
        attached=_members(home),
        memory=VerdictMemory(home / "cache" / "verdicts.json") if remember else None,
    )
    return Inventory(listings, manifest, problem)


def read_backbone_manifest(package: Package) -> BackboneManifest:
    """Read a backbone's manifest alone, none of its tensors.

    Raises:
        ContractError: If it cannot be read.
    """
    raw = reader(package, limit=MAX_BYTES)(MANIFESTS["backbone"], "package_files")
    manifest = parse_backbone(raw) if isinstance(raw, bytes) else raw
    if isinstance(manifest, BackboneManifest):
        return manifest
    raise manifest.error(f"backbone package {package.dist} {package.version}")


def current_record(home: Path) -> Composition | None:
    """Return the record of the current generation, None when nothing is composed."""
    generations = Generations(home)
    number = generations.current()
    return None if number is None else generations.load(number)


def _members(home: Path) -> Mapping[str, str]:
    """Return id → digest of the current generation; a damaged one has attached nothing."""
    try:
        record = current_record(home)
    except (IntegrityError, UnknownNameError):  # for who needs the generation to report
        return {}
    return record.members() if record else {}
