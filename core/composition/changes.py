"""Change one member of the current composition.

A change adds, removes or replaces exactly one expert of the current composition. The members that
stay are read from the store: they need not be installed, and the result is independent of what is
installed. Before the first generation there are no members; the installed experts are the start.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from ...registry.environment.status import PackageStatus
from ...registry.errors import (
    ContractError,
    HarmError,
    RedhostError,
    UsageError,
)
from ...registry.home.composition import Composition
from ...registry.package.discover import canonical
from ...registry.queries.inventory import installed_digests
from ...registry.queries.settings import disabled_names
from ..receipt import Receipt
from ..session import Session
from .choose import LARGEST
from .gates import TRY_HINT
from .options import RecomposeKeywords
from .publish import RecomposeResult, publish
from .recompose import compose_selection
from .refusal import Code, Refusal, accepted
from .select import (
    ExpertSource,
    Selection,
    change,
    read_source,
    select_installed,
    select_stored,
    without_unsigned,
)

SMALL = ("ridge", "statistics", "centroid")
"""Kinds of routers that have a closed form and store little."""

LARGE = ("evidence", "quadratic")
"""Kinds with one covariance per column."""


def change_members(
    session: Session,
    *,
    add: ExpertSource | None = None,
    remove: str | None = None,
    update: bool = False,
    before_publish: AbstractContextManager[None] | None = None,
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
    # Held from the first read on: nobody publishes between the comparison and the switch.
    with session.generations.writer() as writer:
        current = session.generations.current() if remove is None else session.require_current()
        record = None if current is None else session.generations.load(current)
        selection = _current_members(session, record, add)
        joins = None
        if add is not None:
            joins = read_source(
                add,
                backbone=selection.files.manifest,
                home=session.home,
                keys=session.settings.keys or (),
            )
            if record is None and joins.origin is not None and joins.origin.signer:
                selection = without_unsigned(selection)
            # Before the first generation the selection is what is installed, which may include it.
            if (update or record is None) and joins.id in selection.ids:
                remove = joins.id
        selected = change(selection, home=session.home, add=joins, remove=remove)
        made_with = (
            {**record.settings, "router": record.router.kind, "seed": record.router.seed}
            if record is not None
            else {}
        )
        outcome = compose_selection(session, selected, keywords, made_with=made_with)
        if joins is not None and (refusal := _refusal_of(joins, outcome)):
            hint = TRY_HINT if refusal.retry else None
            if refusal.retry and keywords.get("try_others"):
                hint = _what_helps(session, joins, selected, keywords, made_with)
            raise _error_of(joins, refusal, hint=hint) from refusal.cause
        result = accepted(outcome)
        if record is not None:
            result = _with_drift(result, record, joins, home=session.home)
        with before_publish or nullcontext():
            receipt = publish(session, result, writer=writer)
    session.plugins.notify("redhost_composed", receipt=receipt)
    return receipt


def _with_drift(
    result: RecomposeResult, record: Composition, joins: PackageStatus | None, *, home: Path
) -> RecomposeResult:
    """List the members that stay although what is installed differs from their stored bytes."""
    stay = result.receipt.experts.keys() - {joins.id if joins else None}
    digests, off, kinds = installed_digests(), disabled_names(home), dict[str, str]()
    for member in (m for m in record.experts if m.id in stay):
        if {member.id, member.dist} & off:
            kinds[member.id] = "disabled"
        # Several installed packages may have one id; one of them with these bytes is enough.
        elif member.digest not in digests.get(member.id, ()):
            kinds[member.id] = "changed" if member.id in digests else "missing"
    return replace(result, receipt=msgspec.structs.replace(result.receipt, drift=kinds))


def _current_members(
    session: Session, record: Composition | None, add: ExpertSource | None
) -> Selection:
    backbone = session.settings.backbone
    if record is None:
        joins = None if add is None else (add, session.settings.keys or ())
        return select_installed(session.home, backbone=backbone, joins=joins)
    names = {canonical(record.backbone.id), canonical(record.backbone.dist)}
    if backbone is not None and canonical(backbone) not in names:
        raise UsageError(
            f"generation {record.number} is composed on another backbone",
            expected=record.backbone.id,
            found=backbone,
            hint=f"Leave out --backbone, or run 'redhost recompose --backbone {backbone}' first.",
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
    selected: Selection,
    keywords: RecomposeKeywords,
    made_with: Mapping[str, Any],
) -> str:
    """Compose with other routers in turn, and return which of them would accept a newcomer."""
    columns, width = len(selected.ids) + 1, selected.files.manifest.width
    # What would be too large as the default is not proposed either.
    kinds = (*SMALL, *LARGE) if columns * width**2 <= LARGEST else SMALL
    good = dict[str, float]()
    for kind in kinds:
        other: RecomposeKeywords = {**keywords, "router": kind, "level": "full"}
        with suppress(RedhostError):
            outcome = compose_selection(session, selected, other, made_with=made_with)
            if _refusal_of(joins, outcome) is None:
                good[kind] = accepted(outcome).receipt.accuracy.overall or 0.0
    if not good:
        return (
            f"Tried --router {', '.join(kinds)}: none lets it in. A card of vectors with sums over "
            "more rows, or rows that are less like the others', may; --accept goes on even so."
        )
    best = sorted(good, key=lambda kind: (-good[kind], kind))
    rights = ", ".join(f"{kind} ({good[kind]:.1%} of gate rows right)" for kind in best)
    return f"Tried: --router {rights} would let it in."


def _refusal_of(joins: PackageStatus, outcome: RecomposeResult | Refusal) -> Refusal | None:
    """Return why the expert that was to join does not, if it does not."""
    if isinstance(outcome, Refusal):
        return outcome
    candidates = outcome.inputs.candidates
    rejected = (r for r in candidates.rejected if r.expert == joins.id)
    return None if joins.id in candidates.experts else next(rejected)


def _error_of(joins: PackageStatus, refusal: Refusal, *, hint: str | None) -> RedhostError:
    """Return the error to raise if the expert that was to join does not."""
    if refusal.expert is None:
        return refusal.error(hint=hint)
    first = refusal.violations[0]
    if hint is None or refusal.code is Code.SAME_ROWS:
        hint = first.hint
    kind = refusal.code.error(ContractError)
    return kind(f"{joins.name} was not attached", found=f"{first.code}: {first.reason}", hint=hint)
