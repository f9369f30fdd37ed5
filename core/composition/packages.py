"""Add and remove an expert: composition and environment change together, or neither does."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Unpack

import msgspec

from ...registry.environment.installed import require_removable
from ...registry.environment.installer import installed_from, require_free, uninstall
from ...registry.errors import ContractError, UnknownNameError, UsageError
from ...registry.home.composition import Member
from ...registry.home.generations import PurgeReport, drop_copies
from ...registry.home.questions import question_of, recorded_place
from ...registry.package.checked import Violation
from ...registry.package.discover import Package, canonical, require_one
from ...registry.package.manifest import ExpertManifest
from ...registry.queries.inventory import current_record, installed_manifests
from ...registry.wheel.wheel import Wheel
from ..receipt import Receipt
from ..session import Session
from .changes import change_members
from .options import RecomposeKeywords


class Added(Member, frozen=True, kw_only=True, omit_defaults=False):
    """The result of `add`: the expert as composed and as installed, from the pinned wheel.

    Attributes:
        replaced: The version that was installed before, if any.
        older_than: The newest version that was installed or composed before, if this is older.
        receipt: The receipt of the composition.
    """

    replaced: str | None
    older_than: str | None = None
    receipt: Receipt


class Removed(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `remove`.

    Attributes:
        id: The expert's id.
        dist: The distribution that was uninstalled, if one was.
        version: Its version.
        receipt: The receipt of the composition without it; None if it was not composed.
        purged: Digests of the stored copies that were deleted.
        unreachable: Generations that cannot be rolled back to without these copies.
    """

    id: str
    dist: str | None
    version: str | None
    receipt: Receipt | None
    purged: tuple[str, ...]
    unreachable: tuple[int, ...]


def add(
    session: Session,
    wheel: Wheel,
    *,
    replace: str | None = None,
    **keywords: Unpack[RecomposeKeywords],
) -> Added:
    """Compose with an audited wheel; install it only if every gate has passed.

    It replaces an expert with the same id. If anything fails, environment and home are unchanged.

    Args:
        session: The session whose composition it joins.
        wheel: From `registry.wheel.wheel.open_wheel` or `registry.environment.installer.fetch`.
        replace: The id of another expert to replace, needed if the wheel has the name of its
            distribution.
        keywords: See `RecomposeKeywords`.

    Raises:
        ContractError: If the id is another package's, or the distribution another expert's.
        HarmError: If another domain would lose more than the tolerance.
    """
    before = require_free(wheel.package)
    leaves = _require_own(session.home, wheel, replace)
    newer = _newer_version(session.home, wheel.package, before)
    # Of signed wheels only: an old signature can be replayed, and a new one not be made.
    if newer and wheel.signer and not keywords.get("accept"):
        raise ContractError(
            f"{wheel.package} was not installed: a newer version is here",
            expected=f"{newer} or newer",
            found=wheel.package.version,
            hint="An old signature stays valid for ever; --accept goes back even so.",
        )
    receipt = change_members(
        session,
        add=wheel,
        remove=leaves,
        update=True,
        # Installed between the last gate and the publication: if either fails, both are undone.
        before_publish=installed_from(wheel),
        keywords=keywords,
    )
    files = wheel.expert.unwrap(wheel.name)  # it was composed, so it has no violations
    return Added(
        id=files.manifest.id,
        dist=wheel.package.dist,
        version=wheel.package.version,
        digest=files.digest,
        wheel=wheel.sha256,
        replaced=None if before is None else before.version,
        older_than=newer,
        receipt=receipt,
        signer=wheel.signer,
        source=recorded_place(wheel.source, session.home),
    )


def remove(
    session: Session, expert_id: str, *, purge: bool = False, **keywords: Unpack[RecomposeKeywords]
) -> Removed:
    """Compose without an expert, publish that, then uninstall it.

    Args:
        session: The session whose composition it leaves.
        expert_id: Its id; for a package that is broken or shares an id, its distribution.
        purge: Delete its stored copies too; generations with it cannot be rolled back to then.
        keywords: See `RecomposeKeywords`.

    Raises:
        UnknownNameError: If it is neither installed nor composed.
        MissingError: If nothing is composed here.
        HarmError: If another domain would lose more than the tolerance.
        IntegrityError: If uninstalling it would remove files of other packages.
    """
    package, ids = _installed(expert_id)
    record = current_record(session.home)
    members = record.experts if record else ()
    dists = {canonical(d) for d in (expert_id, *((package.dist,) if package else ()))}
    matching = (m.id for m in members if expert_id == m.id or canonical(m.dist) in dists)
    composed = next(matching, None)
    if package is None and composed is None:
        raise UnknownNameError("expert", expert_id, {*ids, *(m.id for m in members)})
    if package is not None:
        require_removable(package)
        # In a mistyped home: the composition that has the expert would stay as it is.
        session.require_current(instead=f"uninstall it alone with 'pip uninstall {package.dist}'")
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


def _require_own(home: Path, wheel: Wheel, replace: str | None) -> str | None:
    """Refuse a wheel whose id belongs to another package, or whose name to another expert.

    With a shared id both would fail afterwards; with a shared name pip would uninstall the other.

    Returns:
        The id of the composed member that it replaces, if any.
    """
    files = wheel.expert.value
    if files is None:
        return None  # the violations are reported when it is read to be composed
    expert_id, dist = files.manifest.id, canonical(wheel.package.dist)
    installed, record = installed_manifests(), current_record(home)
    if others := [p for p, m in installed if m and m.id == expert_id and canonical(p.dist) != dist]:
        raise ContractError(
            f"{wheel.package} was not installed: its id {expert_id!r} is taken",
            found=f"provided by {others[0]}",
            hint=f"Remove that first: 'redhost remove {others[0].dist}'.",
        )
    _refuse_moved(wheel, files.manifest, installed, home=home)
    members = record.experts if record else ()
    held = {m.id for p, m in installed if m and canonical(p.dist) == dist}
    held |= {m.id for m in members if canonical(m.dist) == dist}
    held -= {expert_id}
    if replace is not None and replace not in held:
        raise UnknownNameError(f"expert in {wheel.package.dist}", replace, held)
    if lost := sorted(held - {replace}):
        given, hint = (
            f"that of expert {lost[0]!r}",
            f"To lose that one for it: --replace {lost[0]}.",
        )
        taken = Violation("taken_name", "distribution", "a name of its own", given, hint)
        raise taken.error(f"{wheel.package} was not installed")
    return next((m.id for m in members if m.id == replace), None)


def _refuse_moved(
    wheel: Wheel,
    manifest: ExpertManifest,
    installed: Sequence[tuple[Package, ExpertManifest | None]],
    *,
    home: Path,
) -> None:
    """Refuse a wheel of an expert, or of a name, that answers another question here.

    That question's composition would go on with stored bytes, and nothing would report it.
    """
    question, dist = manifest.question or None, canonical(wheel.package.dist)
    for package, other in installed:
        if other is None or (other.question or None) in {question, question_of(home)}:
            continue
        if other.id == manifest.id or canonical(package.dist) == dist:
            raise ContractError(
                f"{wheel.package} was not installed: expert {other.id!r} ({package}) answers "
                "another question",
                expected=f"a wheel for {other.question or 'the question without a name'}",
                found=str(question or "the question without a name"),
                hint=f"Remove that first: 'redhost remove {other.id}'.",
            )


def _installed(name: str) -> tuple[Package | None, set[str]]:
    """Find the one installed package with this id or distribution; return also all ids."""
    installed = installed_manifests()
    matching = [
        p for p, m in installed if (m and m.id == name) or canonical(p.dist) == canonical(name)
    ]
    if len({p.dist for p in matching}) > 1:
        both = " and ".join(sorted(map(str, matching)))
        hint = "Name the distribution instead."
        raise UsageError(f"several packages provide expert {name!r}", found=both, hint=hint)
    require_one(name, {p.info for p in matching})
    return next(iter(matching), None), {m.id if m else p.dist for p, m in installed}


def _newer_version(home: Path, package: Package, before: Package | None) -> str | None:
    """Return the newest version that is installed or composed, if it is newer than a package's.

    Args:
        home: The home with the composition.
        package: The package.
        before: The package of the same distribution that is installed, if any.
    """
    from packaging.version import InvalidVersion, Version

    record, dist = current_record(home), canonical(package.dist)
    versions = [m.version for m in record.experts if canonical(m.dist) == dist] if record else []
    versions += [before.version] if before else []
    with suppress(InvalidVersion):
        newest = max(versions, key=Version, default=package.version)
        return newest if Version(newest) > Version(package.version) else None
    return None
