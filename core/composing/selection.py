"""What a composition is to be made of: what is installed, or the current members with one change.

Nothing is trained here; reading and static checks only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...registry.composition import Composition
from ...registry.disabled import Disabled
from ...registry.discover import MANIFESTS, Package, discover, from_folder
from ...registry.errors import CompositionError, IntegrityError, UnknownNameError, UsageError
from ...registry.files import BackboneFiles, ExpertFiles, read_backbone, read_expert
from ...registry.inventory import take_inventory
from ...registry.keys import read_keys
from ...registry.manifest import MAX_BYTES, BackboneManifest, ExpertManifest, parse_expert
from ...registry.settings import choose_backbone
from ...registry.sources import Source as Bytes
from ...registry.sources import reader
from ...registry.states import Listing, list_files, survey
from ...registry.store import Store
from ...registry.wheels import Wheel, open_wheel
from ..extending.assemble import sound
from .workspace import read_package

__all__ = [
    "Installed",
    "Selection",
    "Source",
    "change",
    "installed_expert",
    "read_source",
    "select_installed",
    "select_stored",
]


@dataclass(frozen=True)
class Installed:
    """An installed expert, and never a path: what comes from a stranger is to be one of these.

    Attributes:
        id: Its id.
    """

    id: str


Source = str | Path | Wheel | Installed
"""An installed expert's id, a wheel (its path, or audited already), or a package's folder."""


@dataclass(frozen=True, kw_only=True)
class Selection:
    """A backbone and the experts that may join it.

    Attributes:
        package: The backbone's package.
        files: Its bytes.
        listings: The experts as far as static checks go.
    """

    package: Package
    files: BackboneFiles
    listings: tuple[Listing, ...]

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of the experts that nothing is wrong with."""
        return tuple(x.id for x in self.listings if x.id is not None and not x.violations)


def select_installed(home: Path, *, backbone: str | None) -> Selection:
    """Select everything that is installed.

    Args:
        home: The state folder: which experts are disabled.
        backbone: Which backbone, when several are installed.
    """
    package = choose_backbone(discover("backbone"), backbone)
    inventory = take_inventory(home, backbone=backbone, remember=False)
    return Selection(package=package, files=read_package(package), listings=inventory.listings)


def select_stored(record: Composition, store: Store) -> Selection:
    """Select the members of a generation from the store, whatever is installed now.

    Raises:
        IntegrityError: If stored bytes are not those that were composed.
    """
    told = record.backbone
    files = sound(read_backbone(store.get(told.digest)), told.id, digest=told.digest)
    listings = []
    for m in record.experts:
        package = Package("expert", m.dist, m.version, "", None, False)
        expert = sound(read_expert(store.get(m.digest)), m.id, digest=m.digest)
        listings.append(
            list_files(package, expert, backbone=files.manifest, wheel=m.wheel, signer=m.signer)
        )
    package = Package("backbone", told.dist, told.version, "", None, False)
    return Selection(package=package, files=files, listings=tuple(listings))


def change(selection: Selection, *, put: Listing | None, take: str | None) -> Selection:
    """Change a selection by exactly one expert.

    Args:
        selection: What to start from.
        put: The expert that joins, already judged.
        take: The id of the one that leaves.

    Raises:
        UnknownNameError: If nobody of this id is there to leave.
        UsageError: If another expert of the same id stays.
        CompositionError: If nobody would be left.
    """
    if take is not None and take not in selection.ids:
        raise UnknownNameError("composed expert", take, selection.ids)
    if put is not None and put.id != take and put.id in selection.ids:
        raise UsageError(
            f"expert {put.id!r} is composed already",
            hint=f"Replace it: host.replace({put.id!r}, source), or 'redhost add WHEEL'.",
        )
    gone = {take, put.id if put is not None else None}
    stay = tuple(x for x in selection.listings if x.id is None or x.id not in gone)
    listings = stay if put is None else (*stay, put)
    if not listings:
        raise CompositionError(
            f"expert {take!r} is the only one composed",
            expected="another that stays",
            hint="Attach another one first.",
        )
    return Selection(package=selection.package, files=selection.files, listings=listings)


def read_source(
    source: Source, *, backbone: BackboneManifest, home: Path, keys: Sequence[str] = ()
) -> Listing:
    """Read the expert that is to join, wherever it is; a wheel is audited.

    Args:
        source: Where it is.
        backbone: The backbone it must fit.
        home: The state folder.
        keys: Files of public keys; one of them must have signed a wheel, if there are any.

    Raises:
        RedhostError: If it is unknown, breaks its contract, or does not fit the backbone.
    """
    package, content, wheel = _open(source, home, keys)
    if package.kind != "expert":
        hint = "Install it with pip, then 'redhost recompose --backbone NAME'."
        raise UsageError(f"{package} is a backbone, not an expert", hint=hint)
    files = read_expert(content)
    if not isinstance(files, ExpertFiles):
        raise files[0].error(f"expert package {package} was not attached")
    off = Disabled(home).names()
    sha256, signer = (wheel.sha256, wheel.signer) if wheel else ("", "")
    listing = list_files(
        package, files, backbone=backbone, disabled=off, wheel=sha256, signer=signer
    )
    if listing.violations:
        raise listing.error()
    return listing


def installed_expert(name: str, home: Path) -> Package:
    """Find an installed expert, by id or distribution, that nothing is wrong with.

    Every manifest is looked at for its id, and only packages of that id are checked: what others
    have in them is nobody's question here.
    """
    ids = {package: _manifest_id(package) for package in discover("expert")}
    wanted = {i for package, i in ids.items() if name in {i, package.dist}}
    if not wanted:
        raise UnknownNameError("expert", name, [i or package.dist for package, i in ids.items()])
    asked = [package for package, i in ids.items() if i in wanted]
    listings = survey(asked, backbone=None, disabled=Disabled(home).names())
    found = [x for x in listings if name in {x.id, x.package.dist}]
    for listing in found:
        if listing.state == "discovered" or listing.code in {"disabled", "duplicate_id"}:
            raise listing.error()
    return found[0].package


def _manifest_id(package: Package) -> str | None:
    """Return the id a package's manifest says, None where it cannot be read."""
    raw = reader(package, limit=MAX_BYTES)(MANIFESTS["expert"], "package_files")
    manifest = parse_expert(raw) if isinstance(raw, bytes) else raw
    return manifest.id if isinstance(manifest, ExpertManifest) else None


def _open(source: Source, home: Path, keys: Sequence[str]) -> tuple[Package, Bytes, Wheel | None]:
    """Return who a source is, where its bytes are, and its wheel if it comes from one."""
    if isinstance(source, str) and not Path(source).exists():
        source = Installed(source)
    if isinstance(source, Installed):
        package = installed_expert(source.id, home)
        return package, package, None
    if not isinstance(source, Wheel) and Path(source).is_dir():
        package = from_folder(Path(source))
        return package, package, None
    wheel = source if isinstance(source, Wheel) else open_wheel(Path(source), keys=read_keys(keys))
    if keys and not wheel.signer:
        hint = "Open it with the project's keys: open_wheel(path, keys=read_keys(...))."
        raise IntegrityError(f"wheel {wheel.name} was not attached: nobody verified it", hint=hint)
    return wheel.package, wheel.files, wheel
