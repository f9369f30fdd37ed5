"""Add and remove an expert: the composition and the environment change together, or not at all."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Unpack

import msgspec

from ...registry.composition import Composition
from ...registry.discover import Package, canonical
from ...registry.errors import ContractError, UnknownNameError, UsageError
from ...registry.files import ExpertFiles, read_expert
from ...registry.installed import require_removable
from ...registry.installer import find, installed, require_free, uninstall
from ...registry.inventory import current_record, take_inventory
from ...registry.purge import Dropped, drop_copies
from ...registry.states import Listing
from ...registry.wheels import Wheel
from ..receipt import Receipt
from .changes import ChangeOptions, change_members

if TYPE_CHECKING:
    from ..host import Host

__all__ = ["Added", "Removed", "add", "remove"]


class Added(msgspec.Struct, frozen=True, kw_only=True):
    """What `add` did.

    Attributes:
        id: The expert's id.
        dist: Its distribution.
        version: Its version.
        digest: The digest of its content, as composed and as installed.
        wheel: The sha256 of the wheel, pinned in the lock.
        replaced: The version that was installed before, if any.
        receipt: Of the composition.
        signer: The fingerprint of the key that verified the wheel, where keys were asked for.
    """

    id: str
    dist: str
    version: str
    digest: str
    wheel: str
    replaced: str | None
    receipt: Receipt
    signer: str = ""


class Removed(msgspec.Struct, frozen=True, kw_only=True):
    """What `remove` did.

    Attributes:
        id: The expert's id.
        dist: The distribution that was uninstalled, if one was.
        version: Its version.
        receipt: Of the composition without it; None if it was not composed.
        purged: Digests of the stored copies that were dropped.
        unreachable: Generations that cannot be rolled back to without them.
    """

    id: str
    dist: str | None
    version: str | None
    receipt: Receipt | None
    purged: tuple[str, ...]
    unreachable: tuple[int, ...]


def add(host: Host, wheel: Wheel, **options: Unpack[ChangeOptions]) -> Added:
    """Compose with an audited wheel, and install it only when every gate has passed.

    An expert of the same id makes way for it. If anything fails, the environment and the home are
    as they were.

    Args:
        host: Whose composition it joins.
        wheel: From `registry.wheels.open_wheel` or `registry.installer.fetch`.
        options: See `ChangeOptions`.
    """
    require_free(wheel.package)
    _require_sole(host, wheel)
    before = find(wheel.package.dist)
    joined: list[Listing] = []

    def around(listing: Listing | None) -> AbstractContextManager[None]:
        if listing is None:
            return nullcontext()
        joined.append(listing)
        return installed(wheel, digest=listing.digest or "")

    receipt = change_members(host, put=wheel, update=True, around=around, options=options)
    return Added(
        id=joined[0].id or "",
        dist=wheel.package.dist,
        version=wheel.package.version,
        digest=joined[0].digest or "",
        wheel=wheel.sha256,
        replaced=None if before is None else before.version,
        receipt=receipt,
        signer=wheel.signer,
    )


def remove(
    host: Host, expert_id: str, *, purge: bool = False, **options: Unpack[ChangeOptions]
) -> Removed:
    """Compose without an expert, publish that, then uninstall it.

    Args:
        host: Whose composition it leaves.
        expert_id: Its id; for a package that is broken or shares an id, its distribution.
        purge: Drop its stored copies too; generations with it cannot be rolled back to then.
        options: See `ChangeOptions`.

    Raises:
        UnknownNameError: If it is neither installed nor composed.
        HarmError: If another domain would lose more than the tolerance.
        IntegrityError: If uninstalling it would remove files of others.
    """
    package, known = _installed(host, expert_id)
    record = current_record(host.home)
    composed = _composed(record, expert_id, package)
    if package is None and composed is None:
        members = record.members() if record else {}
        raise UnknownNameError("expert", expert_id, {*known, *members})
    if package is not None:
        require_removable(package)
    receipt = None if composed is None else change_members(host, take=composed, options=options)
    if package is not None:
        uninstall(package.dist)
    dropped = drop_copies(host.generations, composed or expert_id) if purge else Dropped()
    return Removed(
        id=composed or expert_id,
        dist=package.dist if package else None,
        version=package.version if package else None,
        receipt=receipt,
        purged=dropped.digests,
        unreachable=dropped.generations,
    )


def _require_sole(host: Host, wheel: Wheel) -> None:
    """Refuse a wheel whose id another installed package provides: both would fail then."""
    files = read_expert(wheel.files)
    if not isinstance(files, ExpertFiles):
        return  # told, with all that is wrong, where it is read to be composed
    listings = take_inventory(host.home, remember=False).listings
    same = {x.package.dist: x.package for x in listings if x.id == files.manifest.id}
    others = [p for d, p in same.items() if canonical(d) != canonical(wheel.package.dist)]
    if others:
        raise ContractError(
            f"{wheel.package} was not installed: its id {files.manifest.id!r} is taken",
            found=f"provided by {others[0]}",
            hint=f"Remove that first: 'redhost remove {others[0].dist}'.",
        )


def _installed(host: Host, name: str) -> tuple[Package | None, set[str]]:
    """Find the one installed package of this id or distribution; return also all ids."""
    listings = take_inventory(host.home, remember=False).listings
    found = [
        x.package for x in listings if x.id == name or canonical(x.package.dist) == canonical(name)
    ]
    if len({p.dist for p in found}) > 1:
        both = " and ".join(sorted(map(str, found)))
        hint = "Name the distribution instead."
        raise UsageError(f"several packages provide expert {name!r}", found=both, hint=hint)
    return next(iter(found), None), {x.id or x.package.dist for x in listings}


def _composed(record: Composition | None, name: str, package: Package | None) -> str | None:
    """Return the id of the member that a name or a package stands for."""
    members = record.experts if record else ()
    dist = None if package is None else canonical(package.dist)
    same = (m.id for m in members if name == m.id or canonical(m.dist) in {dist, canonical(name)})
    return next(same, None)
