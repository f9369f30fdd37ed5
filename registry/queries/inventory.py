"""What is installed, what is composed, and their differences: `list-experts`, `status`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from ..atomic import DAMAGED, damaged_entries
from ..environment.status import PackageStatus, ValidationCache, check_packages
from ..errors import IntegrityError, RedhostError, StoreError, UnknownNameError, short
from ..home.composition import LOCK, Composition, LockFile, Member, lock_for, read_lock
from ..home.generations import Generations
from ..home.locks import Lease, Leases
from ..home.questions import (
    cache_of,
    composed_questions,
    home_of,
    homes_with,
    question_of,
    root_of,
)
from ..home.store import Store
from ..package.discover import MANIFESTS, Package, canonical, discover, discover_all
from ..package.manifest import (
    MAX_BYTES,
    BackboneManifest,
    BackboneRef,
    ExpertManifest,
    parse_expert,
)
from ..package.readers import read_expert, read_manifest, read_part
from .settings import (
    choose_backbone,
    disabled_names,
    installed_backbone,
    wanted_backbone,
)

if TYPE_CHECKING:
    from ..wheel.wheel import Wheel


class Inventory(Struct, frozen=True):
    """Installed experts of one question, and the backbone they were checked against.

    Attributes:
        statuses: One for each installed expert package that answers it, or whose manifest cannot
            be read; sorted by id.
        other_questions: One for each package that answers another question.
        package: The chosen backbone's package; None if none could be chosen.
        backbone: Its manifest; None if there is no backbone to check against.
        problem: Why there is none.
        digest: The digest of the backbone's package, if its files match its manifest.
    """

    statuses: tuple[PackageStatus, ...]
    package: Package | None
    backbone: BackboneManifest | None
    problem: RedhostError | None
    digest: str | None = None
    other_questions: tuple[PackageStatus, ...] = ()

    @property
    def elsewhere(self) -> tuple[PackageStatus, ...]:
        """Experts made for backbones of another name; they are not known to be faulty."""
        here = self.backbone.id if self.backbone else None
        return tuple(
            status
            for status in self.statuses
            if status.code == "backbone_mismatch"
            and status.manifest
            and status.manifest.backbone.name != here
        )


def take_inventory(
    home: Path,
    *,
    backbone: str | None = None,
    named: BackboneRef | None = None,
    remember: bool = True,
) -> Inventory:
    """List the experts that answer a home's question with their state, without importing any.

    Args:
        home: The state folder, or that of a question in it, with disabled ids, the current
            generation and cached results.
        backbone: The backbone to use; by default the only one installed, or the one named.
        named: The backbone that a joining expert was made for.
        remember: Whether results for unchanged files may come from the cache.
    """
    package, manifest, problem, digest, packages = None, None, None, None, discover_all()
    revoked = Store(home).revoked()
    try:
        package = choose_backbone(packages["backbone"], backbone, named=named)
        manifest, digest = installed_backbone(package).unwrap(f"backbone package {package}")
        if called_back := revoked.get(digest):
            raise called_back.violation().error(f"backbone package {package}")
    except RedhostError as e:
        problem = e  # an expert can be valid without an installed backbone
    statuses = check_packages(
        packages["expert"],
        backbone=manifest,
        disabled=disabled_names(home),
        revoked=revoked,
        attached={member.id: member.digest for member in composed_members(home)},
        cache=ValidationCache(cache_of(home) / "verdicts.json")
        if remember and root_of(home).is_dir()  # a mistyped home is not created
        else None,
    )
    question = question_of(home)
    answering = tuple(x for x in statuses if x.manifest is None or x.question == question)
    others = tuple(x for x in statuses if x.manifest is not None and x.question != question)
    return Inventory(answering, package, manifest, problem, digest, others)


def installed_manifests() -> tuple[tuple[Package, ExpertManifest | None], ...]:
    """Return every installed expert with its manifest; None for one that cannot be read.

    No other file of a package is read, so nothing is checked.
    """
    read = ((p, read_part(p, MANIFESTS["expert"], limit=MAX_BYTES)) for p in discover("expert"))
    return tuple((package, part.then(parse_expert).value) for package, part in read)


def installed_digests() -> dict[str, set[str]]:
    """Return expert id → the digests that manifests of installed packages stand for."""
    digests = defaultdict[str, set[str]](set)
    for package in discover("expert"):
        read = read_part(package, MANIFESTS["expert"], limit=MAX_BYTES).then(read_manifest)
        if read.value is not None:
            digests[read.value[0].id].add(read.value[1])
    return dict(digests)


def joins_in(home: Path, wheel: Wheel) -> Path:
    """Return the home of the question that a wheel's expert answers.

    Args:
        home: The state folder; the folder of a question is returned unchanged, and joining there
            may be refused.
        wheel: The wheel; if its manifest cannot be read, that is reported when it is composed.
    """
    manifest = read_part(wheel.files, MANIFESTS["expert"]).then(parse_expert).value
    question = (manifest.question or None) if manifest else None
    return home if question_of(home) is not None else home_of(home, question)


def take_inventories(home: Path, *, backbone: str | None = None) -> dict[str | None, Inventory]:
    """Return the inventories of a home's question and of its named questions, by name.

    Args:
        home: The state folder; the folder of a question has no other questions.
        backbone: The backbone of the default question, and of a named one that has no lock.
    """
    inventory = take_inventory(home, backbone=wanted_backbone(home, backbone))
    if (question := question_of(home)) is not None:
        return {question: inventory}
    names = sorted({*composed_questions(home), *filter(None, questions_of(inventory))})
    inventories: dict[str | None, Inventory] = {None: inventory}
    for name in names:
        where = home_of(home, name)
        listed = take_inventory(where, backbone=wanted_backbone(where) or backbone)
        # What has no manifest that can be read stands once, in the default question's.
        statuses = tuple(x for x in listed.statuses if x.manifest is not None)
        inventories[name] = replace(listed, statuses=statuses)
    return inventories


def questions_of(inventory: Inventory) -> tuple[str | None, ...]:
    """Return the other questions that installed experts answer, the default question first."""
    return tuple(
        sorted({x.question for x in inventory.other_questions}, key=lambda name: name or "")
    )


def home_of_expert(home: Path, name: str) -> Path:
    """Return the home, of a question or not, that an expert is composed in or may join.

    Args:
        home: The state folder; the folder of a question is returned unchanged.
        name: An id or a distribution; if it is neither composed nor installed, the given home
            is returned.
    """
    if question_of(home) is not None:
        return home
    for where in homes_with(home):
        if any(name in {m.id, m.dist} for m in composed_members(where)):
            return where
    read = ((package, m) for package, m in installed_manifests() if m and m.question)
    questions = (m.question or None for package, m in read if name in {m.id, package.dist})
    return home_of(home, next(questions, None))


def dists_of(home: Path, expert_id: str) -> tuple[str, ...]:
    """Return the distributions that an expert is installed from, or composed from, sorted."""
    inventory = take_inventory(home)
    installed = {
        x.package.dist for x in inventory.statuses + inventory.other_questions if x.id == expert_id
    }
    composed = {
        m.dist for where in homes_with(home) for m in composed_members(where) if m.id == expert_id
    }
    return tuple(sorted(installed | composed))


def current_record(home: Path) -> Composition | None:
    """Return the record of the current generation, None if nothing is composed."""
    generations = Generations(home)
    return None if (number := generations.current()) is None else generations.load(number)


def composed_members(home: Path) -> tuple[Member, ...]:
    """Return the experts of the current generation; none if nothing is composed.

    Nor if its record is damaged, which is reported where the generation is needed or changed.
    """
    with suppress(IntegrityError, UnknownNameError):
        if (record := current_record(home)) is not None:
            return record.experts
    return ()


def composed_from(home: Path, wheel: Wheel) -> Member | None:
    """Return the member composed from this wheel's bytes, if it is still installed."""
    origin = (wheel.sha256, wheel.signer)
    member = next((m for m in composed_members(home) if (m.wheel, m.signer) == origin), None)
    if member is None or disabled_names(home) & {member.id, member.dist}:
        return None
    installed = (p for p in discover("expert") if canonical(p.dist) == canonical(member.dist))
    files = (read_expert(package).value for package in installed)
    return member if any(x and x.digest == member.digest for x in files) else None


class Drift(Struct, frozen=True):
    """One difference between what is locked and what is installed.

    Attributes:
        id: An expert's id, ``backbone``, or a plugin's distribution.
        kind: ``missing``, ``broken`` or ``disabled`` (locked, but gone, failing or disabled),
            ``changed`` (another build digest), ``new`` (installed, but not locked), ``revoked``.
        locked: The locked value.
        installed: The installed value.
    """

    id: str
    kind: Literal["missing", "broken", "disabled", "changed", "new", "revoked"]
    locked: str
    installed: str


def drift(
    lock: LockFile,
    statuses: Collection[PackageStatus],
    *,
    fingerprint: str | None = None,
    digest: str | None = None,
    plugins: Mapping[str, str] | None = None,
) -> tuple[Drift, ...]:
    """Compare the lock with what is installed.

    Args:
        lock: The lock.
        statuses: The statuses of the installed experts, from `check_packages`.
        fingerprint: The fingerprint of the installed backbone; not compared when None.
        digest: The digest of its package, which includes rows and classifier; compared if the
            fingerprint is the locked one.
        plugins: Distribution → digest of the plugins in use; not compared when None.

    Returns:
        Every difference, sorted by id; empty if the installed parts match the lock.
    """
    locked = {expert_id: expert.digest for expert_id, expert in lock.experts.items()}
    working = {s.id: s.digest for s in statuses if s.id and s.digest and not s.code}
    differences = [*_compare(locked, working, failing={s.id: s for s in statuses if s.code})]
    if fingerprint is not None:
        old, new = lock.backbone.fingerprint, fingerprint
        if old == new and digest and lock.backbone.digest:
            old, new = lock.backbone.digest, digest
        differences += _compare({"backbone": old}, {"backbone": new})
    if plugins is not None:
        differences += _compare(lock.plugins, plugins)
    return tuple(sorted(differences, key=lambda difference: difference.id))


def _compare(
    locked: Mapping[str, str],
    installed: Mapping[str, str],
    *,
    failing: Mapping[str | None, PackageStatus] | None = None,
) -> Iterator[Drift]:
    """Yield the differences between digests; a failing package is installed but cannot join."""
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


class HomeStatus(Struct, frozen=True, kw_only=True):
    """The answer to `redhost status`; fields are None or empty if nothing is composed.

    Attributes:
        home: The state folder.
        generation: The current generation.
        parent: The one before it.
        back: The parent, if it may answer; null if it is gone, damaged or has what is revoked.
        newest: The newest generation, if an older one is current and that one may answer.
        backbone: The id of its backbone.
        fingerprint: That backbone's fingerprint.
        experts: Ids of its experts.
        router: Its router: kind, level, seed, and the share that it declines, if any.
        drift: Differences between it and what is installed.
        held: Generations that live processes hold.
        leftovers: Files of writers that were stopped; the next writer removes them.
        lock: How redhost.lock differs from the current generation's: ``missing``, ``unreadable`` or
            ``other``; null if it does not.
        damaged: By cache, the number of damaged entries that were computed again; caches without
            any are left out.
        store: What is wrong with stored copies that it needs; only one that was touched since is
            read.
        questions: The current generation of each named question; absent if none is composed.
    """

    home: str
    generation: int | None = None
    parent: int | None = None
    back: int | None = None
    newest: int | None = None
    backbone: str | None = None
    fingerprint: str | None = None
    experts: tuple[str, ...] = ()
    router: str | None = None
    drift: tuple[Drift, ...] = ()
    held: tuple[Lease, ...] = ()
    leftovers: tuple[str, ...] = ()
    lock: Literal["missing", "unreadable", "other"] | None = None
    damaged: dict[str, int] = {}
    store: tuple[str, ...] = ()
    questions: dict[str, int | None] | UnsetType = UNSET


def declining(record: Composition) -> str:
    """Return the share that a generation declines, to follow its router; empty if none."""
    return f", declines {share:.2%}" if (share := record.settings.get("decline")) else ""


def take_status(home: Path) -> HomeStatus:
    """Compare the current generation of a home with what is installed."""
    record = current_record(home)
    status = HomeStatus(
        home=str(home),
        held=Leases(home).live(),
        leftovers=Generations(home).leftovers(),
        damaged=_damaged(cache_of(home)),
        questions={q: Generations(home_of(home, q)).current() for q in composed_questions(home)}
        or UNSET,
    )
    if record is None:
        return status
    inventory = take_inventory(home, backbone=record.backbone.id)
    fingerprint = inventory.backbone.fingerprint if inventory.backbone else None
    differences = drift(
        lock_for(record), inventory.statuses, fingerprint=fingerprint, digest=inventory.digest
    )
    if inventory.problem is not None:
        locked, reason = short(record.backbone.fingerprint), inventory.problem.reason
        differences = (Drift("backbone", "broken", locked, reason), *differences)
    revoked = Store(home).revoked()
    gone = {
        m.id: Drift(m.id, "revoked", short(m.digest), revoked[m.digest].why)
        for m in record.experts
        if m.digest in revoked
    }
    differences = (*gone.values(), *(d for d in differences if d.id not in gone))
    generations = Generations(home)
    later = (n for n in generations.numbers()[-1:] if n > record.number)
    return replace(
        status,
        generation=record.number,
        parent=record.parent,
        back=_allowed(generations, record.parent),
        newest=_allowed(generations, next(later, None)),
        backbone=record.backbone.id,
        fingerprint=record.backbone.fingerprint,
        experts=tuple(m.id for m in record.experts),
        router=f"{record.router.kind} ({record.router.level}, seed {record.router.seed})"
        f"{declining(record)}",
        drift=differences,
        lock=_compare_lock(home, record),
        store=tuple(_faults(Store(home), record)),
    )


def _faults(store: Store, record: Composition) -> Iterator[str]:
    """Yield what is wrong with the copies of a generation's members."""
    for part in record.parts():
        read = store.expert if isinstance(part, Member) else store.backbone
        try:
            if part.digest and store.is_touched(part.digest):
                read(part.digest, name=part.id)
        except RedhostError as e:
            yield e.reason


def _allowed(generations: Generations, number: int | None) -> int | None:
    """Return a generation that a rollback may go to; None if it may not."""
    with suppress(IntegrityError, UnknownNameError):
        if number is not None and generations.refusal(generations.load(number)) is None:
            return number
    return None


def _compare_lock(
    home: Path, record: Composition
) -> Literal["missing", "unreadable", "other"] | None:
    """Return how the lock file differs from that of the current generation."""
    try:
        lock = read_lock(home / LOCK)
    except StoreError:
        return "unreadable"
    if lock is None:
        return "missing"
    return None if lock == lock_for(record) else "other"


def _damaged(cache: Path) -> dict[str, int]:
    """Return the number of damaged entries of each cache in a folder."""
    damaged = {p.parent.name: damaged_entries(p.parent) for p in sorted(cache.rglob(DAMAGED))}
    return {name: entries for name, entries in damaged.items() if entries}
