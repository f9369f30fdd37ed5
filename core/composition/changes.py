"""From a selection to a generation: compose, pass every gate, publish.

A change adds, removes or replaces exactly one expert of the current composition. The members that
stay are read from the store: they need not be installed, and the result is independent of what is
installed. Before the first generation there are no members; the installed experts are the start.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import msgspec

from ...registry.environment.status import PackageStatus
from ...registry.errors import (
    ContractError,
    FrozenError,
    HarmError,
    HijackError,
    MissingError,
    PluginError,
    RedhostError,
    UsageError,
)
from ...registry.home.composition import LOCK, Composition, LockFile, read_lock
from ...registry.package.discover import canonical
from ..bus.tasks import make_task
from ..model.composed import ComposedModel
from ..receipt import Receipt
from ..session import Session
from .attribution import compose_without_faulty
from .candidates import SAME_HINT
from .gates import HARM_HINT, TRY_HINT
from .options import (
    Level,
    RecomposeInputs,
    RecomposeKeywords,
    RecomposeOptions,
)
from .prepare import prepare_composition
from .prior import CARDS, read_prior
from .publish import locked_router, publish, refuse_drift
from .ranks import at_ranks
from .recompose import RecomposeResult, recompose
from .remedies import what_helps
from .select import ExpertSource, Selection, change, read_source, select_installed, select_stored

log = logging.getLogger("redhost")

BeforePublish = Callable[[PackageStatus | None], AbstractContextManager[None]]


def lock_to_follow(home: Path, keywords: RecomposeKeywords) -> LockFile:
    """Return the lock of a home; keywords given by the user may not contradict it.

    Raises:
        MissingError: If there is none.
        UsageError: If a keyword contradicts it.
    """
    lock = read_lock(home / LOCK)
    if lock is None:
        raise MissingError("there is no lock to follow", hint="Run 'redhost recompose' once.")
    pinned = {"router": lock.router.kind, "level": lock.router.level, "seed": lock.router.seed}
    stays = {name: lock.settings.get(name) for name in ("decline", "prior")}
    locked, given = {**pinned, **stays}, dict[str, Any](keywords)
    given["decline"] = given.get("decline") or None  # 0 and no share both decline nothing
    given["prior"] = None if given.get("prior") == CARDS else given.get("prior")
    for i, rank in (keywords.get("ranks") or {}).items():
        locked[f"rank of {i}"] = lock.experts[i].rank if i in lock.experts else None
        given[f"rank of {i}"] = rank
    for name, value in locked.items():
        wanted = given.get(name)
        if wanted not in {None, value}:
            raise UsageError(
                f"--locked uses the {name} of the lock",
                expected=str(value),
                found=str(wanted),
                hint="Leave it out, or recompose without --locked.",
            )
    return lock


def compose_selection(
    session: Session,
    selection: Selection,
    keywords: RecomposeKeywords,
    *,
    made_with: Mapping[str, Any] | None = None,
    lock: LockFile | None = None,
) -> tuple[RecomposeInputs, RecomposeResult]:
    """Check, build, train and judge; publish nothing.

    Args:
        session: The session whose current generation it is compared with.
        selection: The backbone and the experts.
        keywords: How to compose.
        made_with: Replaces missing keywords; the settings replace what is missing here.
        lock: Supplies router and settings; nothing is trained then.

    Raises:
        FrozenError: If a frozen part changed; the current generation is then loaded anew.
        HarmError: If something that worked would stop working.
    """
    task, settings = make_task(selection.files.manifest.task), session.settings
    options = RecomposeOptions(router=task.unit.router)
    options = options.over(keywords, made_with or {}, msgspec.structs.asdict(settings))
    options = replace(options, prior=read_prior(options.prior, home=session.home))
    progress = keywords.get("progress")
    record, previous = _load_previous(session, accept=options.accept)

    def prepare(chosen: Selection) -> RecomposeInputs:
        return prepare_composition(
            chosen,
            plugins=session.plugins,
            cache=session.cache,
            device=session.device,
            record=record,
            previous=previous,
            progress=progress,
            pool=session.pool,
        )

    def attempt(chosen: Selection) -> tuple[RecomposeInputs, RecomposeResult]:
        inputs = prepare(chosen)
        return inputs, recompose(inputs, options, progress=progress)

    def follow(lock: LockFile) -> tuple[RecomposeInputs, RecomposeResult]:
        inputs = prepare(selection)
        weights = locked_router(inputs, lock, generations=session.generations)
        same = _as_locked(options, lock)
        result = recompose(inputs, same, weights=weights, progress=progress)
        # Which plugins make the norm and the router is known only now.
        refuse_drift(inputs, lock, plugins=inputs.providers)
        return inputs, result

    made = lock or record or read_lock(session.home / LOCK)
    selection = at_ranks(selection, given=options.ranks, current=made.ranks() if made else {})
    try:
        if lock is not None:
            return follow(lock)
        members = record.members() if record else {}
        return compose_without_faulty(selection, attempt, composed=members)
    except FrozenError:
        session.loader.forget()  # the loaded generation uses the backbone that may have changed
        raise


def _as_locked(options: RecomposeOptions, lock: LockFile) -> RecomposeOptions:
    """Return the options that a lock was made with."""
    return replace(
        options,
        router=lock.router.kind,
        level=cast("Level", lock.router.level),
        seed=lock.router.seed,
        decline=cast("float | None", lock.settings.get("decline")),
        prior=cast("str | None", lock.settings.get("prior")),
    )


def _load_previous(
    session: Session, *, accept: bool
) -> tuple[Composition | None, ComposedModel | None]:
    """Return the current generation; with `accept`, one that cannot be loaded is dropped.

    Raises:
        HarmError: If it cannot be loaded, so that nothing can be compared with it.
    """
    current, record = session.generations.current(), None
    if current is None:
        return None, None
    try:
        record = session.generations.load(current)
        return record, session.loader.load(current)
    except RedhostError as e:
        if accept:
            log.warning("not compared with generation %s: %s", current, e.reason)
            return record, None
        anew = "Repair it, or compose anew with --accept."
        raise HarmError(
            f"generation {current} cannot be loaded, so nothing is compared with it: {e.reason}",
            hint=e.hint if isinstance(e, PluginError) else anew,
        ) from e


def change_members(
    session: Session,
    *,
    add: ExpertSource | None = None,
    remove: str | None = None,
    update: bool = False,
    before_publish: BeforePublish | None = None,
    keywords: RecomposeKeywords,
) -> Receipt:
    """Compose the current members changed by one expert, and publish that.

    Args:
        session: The session whose home is changed.
        add: The expert that joins.
        remove: The id of the expert that leaves.
        update: Whether a member with the same id as `add` is replaced by it.
        before_publish: Entered once every gate has passed, left when the generation is published.
            If it raises, nothing is published; an error while publishing is passed to it.
        keywords: How to compose.

    Raises:
        RedhostError: If anything fails; the current generation is then unchanged.
    """
    with session.generations.writer() as writer:
        current = session.generations.current() if remove is None else session.require_current()
        record = None if current is None else session.generations.load(current)
        selection = _current_members(session, record, add)
        joins = None
        if add is not None:
            keys = session.settings.keys or ()
            joins = read_source(
                add, backbone=selection.files.manifest, home=session.home, keys=keys
            )
            if (update or record is None) and joins.id in selection.ids:
                remove = joins.id
        wanted = change(selection, home=session.home, add=joins, remove=remove)
        made_with = _made_with(record)
        try:
            inputs, result = compose_selection(session, wanted, keywords, made_with=made_with)
            if joins is not None:
                _require_attached(joins, result.receipt)
        except HarmError as e:
            if joins is None or e.hint != HARM_HINT:
                raise
            tried = keywords.get("try_others")
            hint = _what_helps(session, joins, wanted, keywords, made_with) if tried else TRY_HINT
            error = type(e)(e.problem, expected=e.expected, found=e.found, hint=hint)
            raise error from e
        with before_publish(joins) if before_publish else nullcontext():
            receipt = publish(session, inputs, result, writer=writer)
    session.plugins.notify("redhost_composed", receipt=receipt)
    return receipt


def _made_with(record: Composition | None) -> dict[str, Any]:
    """Return the settings that the current generation was made with, if there is one."""
    if record is None:
        return {}
    return {**record.settings, "router": record.router.kind, "seed": record.router.seed}


def _current_members(
    session: Session, record: Composition | None, add: ExpertSource | None
) -> Selection:
    wanted = session.settings.backbone
    if record is None:
        joins = None if add is None else (add, session.settings.keys or ())
        return select_installed(session.home, backbone=wanted, joins=joins)
    names = {canonical(record.backbone.id), canonical(record.backbone.dist)}
    if wanted is not None and canonical(wanted) not in names:
        raise UsageError(
            f"generation {record.number} is composed on another backbone",
            expected=record.backbone.id,
            found=wanted,
            hint=f"Leave out --backbone, or run 'redhost recompose --backbone {wanted}' first.",
        )
    try:
        return select_stored(record, session.store)
    except RedhostError as e:
        raise HarmError(
            f"generation {record.number} cannot be read from the store, so it cannot be changed",
            found=e.reason,
            hint="Compose what is installed anew with 'redhost recompose --accept'.",
        ) from e


def _what_helps(
    session: Session,
    joins: PackageStatus,
    wanted: Selection,
    keywords: RecomposeKeywords,
    made_with: Mapping[str, Any],
) -> str:
    """Compose with other routers, and return which of them would accept a newcomer."""

    def under(kind: str) -> Receipt:
        other: RecomposeKeywords = {**keywords, "router": kind, "level": "full"}
        return compose_selection(session, wanted, other, made_with=made_with)[1].receipt

    columns, width = len(wanted.ids) + 1, wanted.files.manifest.width
    return what_helps(str(joins.id), columns=columns, width=width, compose=under)


def _require_attached(joins: PackageStatus, receipt: Receipt) -> None:
    """Refuse to leave out the expert that was to join."""
    if joins.id in receipt.experts:
        return
    reason = next((x for x in receipt.left_out if x.id == joins.id), None)
    who, found = f"{joins.name} was not attached", "no reason"
    if reason is not None:
        found = f"{reason.code}: {reason.reason}"
        if reason.code == "hijack":
            raise HijackError(who, found=found, hint=HARM_HINT)
        if reason.code == "harm":
            raise HarmError(who, found=found, hint=HARM_HINT)
        if reason.code == "same_rows":
            raise ContractError(who, found=found, hint=SAME_HINT)
    hint = f"See 'redhost check {joins.package.dist}', or ask its author for a new build."
    raise ContractError(who, found=found, hint=hint)
