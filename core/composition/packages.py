"""Add and remove an expert: the composition and the environment change together, or not at all."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Unpack

import msgspec

from ...registry.environment.installed import require_removable
from ...registry.environment.installer import find, installed_from, require_free, uninstall
from ...registry.environment.status import PackageStatus
from ...registry.errors import ContractError, UnknownNameError, UsageError
from ...registry.home.composition import Member
from ...registry.home.generations import PurgeReport, drop_copies
from ...registry.package.discover import Package, canonical
from ...registry.package.readers import read_expert
from ...registry.queries.inventory import current_record, take_inventory
from ...registry.wheel.wheel import Wheel
from ..receipt import Receipt
from ..session import Session
from .changes import change_members
from .options import RecomposeKeywords


class Added(Member, frozen=True, kw_only=True, omit_defaults=False):
    """What `add` did: the expert as composed and as installed, from the wheel that is pinned.

    Attributes:
        replaced: The version that was installed before, if any.
        receipt: Of the composition.
    """

    replaced: str | None
    receipt: Receipt


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


def add(session: Session, wheel: Wheel, **keywords: Unpack[RecomposeKeywords]) -> Added:
    """Compose with an audited wheel, and install it only when every gate has passed.

    An expert of the same id makes way for it. If anything fails, the environment and the home are
    as they were.

    Args:
        session: Whose composition it joins.
        wheel: From `registry.wheel.wheel.open_wheel` or `registry.environment.installer.fetch`.
        keywords: See `RecomposeKeywords`.
    """
    require_free(wheel.package)
    _require_sole(session.home, wheel)
    before = find(wheel.package.dist)
    joined: list[PackageStatus] = []

    def install(status: PackageStatus | None) -> AbstractContextManager[None]:
        if status is None:
            return nullcontext()
        joined.append(status)
        return installed_from(wheel, digest=status.digest or "")

    receipt = change_members(
        session, add=wheel, update=True, before_publish=install, keywords=keywords
    )
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
    session: Session, expert_id: str, *, purge: bool = False, **keywords: Unpack[RecomposeKeywords]
) -> Removed:
    """Compose without an expert, publish that, then uninstall it.

    Args:
        session: Whose composition it leaves.
        expert_id: Its id; for a package that is broken or shares an id, its distribution.
        purge: Drop its stored copies too; generations with it cannot be rolled back to then.
        keywords: See `RecomposeKeywords`.

    Raises:
        UnknownNameError: If it is neither installed nor composed.
        HarmError: If another domain would lose more than the tolerance.
        IntegrityError: If uninstalling it would remove files of others.
    """
    package, known = _installed(session.home, expert_id)
    record = current_record(session.home)
    members = record.experts if record else ()
    dists = {canonical(d) for d in (expert_id, *((package.dist,) if package else ()))}
    same = (m.id for m in members if expert_id == m.id or canonical(m.dist) in dists)
    composed = next(same, None)
    if package is None and composed is None:
        raise UnknownNameError("expert", expert_id, {*known, *(m.id for m in members)})
    if package is not None:
        require_removable(package)
    receipt = (
        None if composed is None else change_members(session, remove=composed, keywords=keywords)
    )
    if package is not None:
        uninstall(package.dist)
    dropped = drop_copies(session.generations, composed or expert_id) if purge else PurgeReport()
    return Removed(
        id=composed or expert_id,
        dist=package.dist if package else None,
        version=package.version if package else None,
        receipt=receipt,
        purged=dropped.digests,
        unreachable=dropped.generations,
    )


def _require_sole(home: Path, wheel: Wheel) -> None:
    """Refuse a wheel whose id another installed package provides: both would fail then."""
    files = read_expert(wheel.files).value
    if files is None:
        return  # all that is wrong is reported where it is read to be composed
    statuses = take_inventory(home, remember=False).statuses
    same = {x.package.dist: x.package for x in statuses if x.id == files.manifest.id}
    others = [p for d, p in same.items() if canonical(d) != canonical(wheel.package.dist)]
    if others:
        raise ContractError(
            f"{wheel.package} was not installed: its id {files.manifest.id!r} is taken",
            found=f"provided by {others[0]}",
            hint=f"Remove that first: 'redhost remove {others[0].dist}'.",
        )


def _installed(home: Path, name: str) -> tuple[Package | None, set[str]]:
    """Find the one installed package of this id or distribution; return also all ids."""
    statuses = take_inventory(home, remember=False).statuses
    same = [
        x.package for x in statuses if x.id == name or canonical(x.package.dist) == canonical(name)
    ]
    if len({p.dist for p in same}) > 1:
        both = " and ".join(sorted(map(str, same)))
        hint = "Name the distribution instead."
        raise UsageError(f"several packages provide expert {name!r}", found=both, hint=hint)
    return next(iter(same), None), {x.id or x.package.dist for x in statuses}
