"""What is installed and what is composed, and how the two differ: `list-experts`, `status`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..environment.status import PackageStatus, ValidationCache, check_packages
from ..errors import IntegrityError, RedhostError, UnknownNameError, short
from ..home.composition import Composition, LockFile, lock_for
from ..home.generations import Generations
from ..home.locks import Lease, Leases
from ..package.discover import Package, discover_all
from ..package.manifest import BackboneManifest
from .settings import Disabled, choose_backbone, read_backbone_manifest


@dataclass(frozen=True)
class Inventory:
    """Installed experts, and the backbone they were checked against.

    Attributes:
        statuses: One for each installed expert package, sorted by id.
        package: The chosen backbone's package; None when none could be chosen.
        backbone: Its manifest; None when there is none to check against.
        problem: Why there is none.
    """

    statuses: tuple[PackageStatus, ...]
    package: Package | None
    backbone: BackboneManifest | None
    problem: RedhostError | None

    @property
    def elsewhere(self) -> tuple[PackageStatus, ...]:
        """Experts made for backbones of another name: nothing is known to be wrong with them."""
        here = self.backbone.id if self.backbone else None
        return tuple(
            status
            for status in self.statuses
            if status.code == "backbone_mismatch"
            and status.manifest
            and status.manifest.backbone.name != here
        )


def take_inventory(home: Path, *, backbone: str | None = None, remember: bool = True) -> Inventory:
    """List every installed expert with its state, without importing any.

    Args:
        home: The state folder: disabled ids, the current generation, cached results.
        backbone: The backbone wanted; by default the only one installed.
        remember: Whether results for unchanged files may come from the cache.
    """
    package, manifest, problem, packages = None, None, None, discover_all()
    try:
        package = choose_backbone(packages["backbone"], backbone)
        manifest = read_backbone_manifest(package).unwrap(f"backbone package {package}")
    except RedhostError as e:
        problem = e  # an expert can be valid without a backbone to fit
    attached: Mapping[str, str] = {}
    with suppress(IntegrityError, UnknownNameError):  # reported by whoever needs the generation
        attached = record.members() if (record := current_record(home)) else {}
    statuses = check_packages(
        packages["expert"],
        backbone=manifest,
        disabled=Disabled(home).names(),
        attached=attached,
        cache=ValidationCache(home / "cache" / "verdicts.json") if remember else None,
    )
    return Inventory(statuses, package, manifest, problem)


def current_record(home: Path) -> Composition | None:
    """Return the record of the current generation, None when nothing is composed."""
    generations = Generations(home)
    number = generations.current()
    return None if number is None else generations.load(number)


@dataclass(frozen=True)
class Drift:
    """One difference between what is locked and what is installed.

    Attributes:
        id: An expert's id, ``backbone``, or a plugin's distribution.
        kind: ``missing``, ``broken`` or ``disabled`` (locked, but gone, failing or switched off),
            ``changed`` (another build digest), ``new`` (installed, but not locked).
        locked: What the lock says.
        installed: What is there.
    """

    id: str
    kind: Literal["missing", "broken", "disabled", "changed", "new"]
    locked: str
    installed: str


def drift(
    lock: LockFile,
    statuses: Collection[PackageStatus],
    *,
    fingerprint: str | None = None,
    plugins: Mapping[str, str] | None = None,
) -> tuple[Drift, ...]:
    """Compare the lock with what is installed.

    Args:
        lock: The lock.
        statuses: Of the installed experts, from `check_packages`.
        fingerprint: That of the backbone at hand; not compared when None.
        plugins: Distribution → digest of the plugins in use; not compared when None.

    Returns:
        Every difference, sorted by id; empty when what is installed is what is locked.
    """
    locked = {expert_id: expert.digest for expert_id, expert in lock.experts.items()}
    working = {s.id: s.digest for s in statuses if s.id and s.digest and not s.code}
    differences = [*_compare(locked, working, failing={s.id: s for s in statuses if s.code})]
    if fingerprint is not None:
        differences += _compare({"backbone": lock.backbone.fingerprint}, {"backbone": fingerprint})
    if plugins is not None:
        differences += _compare(lock.plugins, plugins)
    return tuple(sorted(differences, key=lambda difference: difference.id))


def _compare(
    locked: Mapping[str, str],
    installed: Mapping[str, str],
    *,
    failing: Mapping[str | None, PackageStatus] | None = None,
) -> Iterator[Drift]:
    """Yield the differences between digests; one that fails is there, and cannot take part."""
    for name in locked.keys() | installed.keys():
        old, new = locked.get(name, ""), installed.get(name, "")
        status = (failing or {}).get(name)
        if old == new:
            continue
        if new:
            yield Drift(name, "changed" if old else "new", short(old), short(new))
        elif status is None:
            yield Drift(name, "missing", short(old), short(new))
        elif status.code == "disabled":
            yield Drift(name, "disabled", short(old), "switched off by you")
        else:
            yield Drift(name, "broken", short(old), status.reason or "")


@dataclass(frozen=True, kw_only=True)
class HomeStatus:
    """The answer to `redhost status`; None and empty where nothing is composed.

    Attributes:
        home: The state folder.
        generation: The current one.
        parent: The one before it.
        backbone: The id of its backbone.
        fingerprint: That backbone's fingerprint.
        experts: Ids of its experts.
        router: Its router: kind, level, seed.
        drift: How what is installed differs from it.
        held: Generations that live processes hold.
        leftovers: Files of writers that were stopped; the next writer removes them.
    """

    home: str
    generation: int | None = None
    parent: int | None = None
    backbone: str | None = None
    fingerprint: str | None = None
    experts: tuple[str, ...] = ()
    router: str | None = None
    drift: tuple[Drift, ...] = ()
    held: tuple[Lease, ...] = ()
    leftovers: tuple[str, ...] = ()


def take_status(home: Path) -> HomeStatus:
    """Compare the current generation of a home with what is installed."""
    record = current_record(home)
    held, leftovers = Leases(home).live(), Generations(home).leftovers()
    if record is None:
        return HomeStatus(home=str(home), held=held, leftovers=leftovers)
    inventory = take_inventory(home, backbone=record.backbone.id)
    fingerprint = inventory.backbone.fingerprint if inventory.backbone else "none"
    return HomeStatus(
        home=str(home),
        generation=record.number,
        parent=record.parent,
        backbone=record.backbone.id,
        fingerprint=record.backbone.fingerprint,
        experts=tuple(m.id for m in record.experts),
        router=f"{record.router.kind} ({record.router.level}, seed {record.router.seed})",
        drift=drift(lock_for(record), inventory.statuses, fingerprint=fingerprint),
        held=held,
        leftovers=leftovers,
    )
