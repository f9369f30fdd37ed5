"""Publish: bytes to the store, then the generation, in one atomic step, with its receipt."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec import UNSET

from ...registry.environment.installed import installed_wheel
from ...registry.errors import CompositionError, MissingError, RedhostError, short
from ...registry.home.composition import (
    LOCK,
    BackboneRecord,
    Composition,
    LockFile,
    Member,
    Provenance,
    RouterRecord,
    Scalar,
    lock_for,
    read_lock,
)
from ...registry.home.generations import Generations
from ...registry.home.locks import Writer
from ...registry.home.questions import question_of, recorded_place
from ...registry.queries.inventory import drift
from ..model.composed import ComposedModel
from ..model.conformal import CALIBRATION, rows_needed, too_few
from ..model.moments import MOMENTS
from ..receipt import Decline, DigestChange, Receipt
from ..session import Session
from .gates import Gates
from .options import RecomposeOptions
from .prepare import RecomposeInputs
from .train import Trained

RECEIPT = "receipt.json"


@dataclass(frozen=True, kw_only=True, eq=False)
class RecomposeResult:
    """A composition that passed, not yet published.

    Attributes:
        inputs: The parts that it was made from.
        composed: The composition.
        receipt: Its receipt.
        router_bytes: Its router's weights.
    """

    inputs: RecomposeInputs
    composed: ComposedModel
    receipt: Receipt
    router_bytes: bytes


def draft_receipt(
    inputs: RecomposeInputs,
    options: RecomposeOptions,
    trained: Trained,
    gates: Gates,
    digests: Mapping[str, DigestChange],
    steps: dict[str, float],
) -> Receipt:
    """Return the receipt of a composition, not yet published."""
    candidates = inputs.candidates
    origins = {i: e.files.manifest.ported for i, e in candidates.experts.items()}
    return Receipt(
        generation=None,
        parent=inputs.previous.model.generation if inputs.previous.model else None,
        router=trained.report,
        backbone=digests[""],
        experts={i: digests[i] for i in candidates.experts},
        left_out=candidates.left_out,
        withdrawn=candidates.withdrawn,
        not_gated=tuple(i for i in candidates.experts if i not in gates.accuracy.after),
        accuracy=gates.accuracy,
        seconds=sum(steps.values()),
        seed=options.seed,
        health=gates.health,
        bits=gates.bits,
        decline=_decline(trained.model),
        steps=steps,
        ported={i: origin.digest for i, origin in origins.items() if origin},
    )


def _decline(model: ComposedModel) -> Decline | None:
    """Return which texts a composition declines; None if no share was given."""
    share, calibration, ids = model.decline, model.calibration, model.bus.ids
    if share is None:
        return None
    t = model.decline_thresholds
    # −∞ is below every text: a column with too few rows declines none. JSON has null for it.
    numbers = [-math.inf] * len(ids) if t is None else t.tolist()
    thresholds = {i: None if x == -math.inf else x for i, x in zip(ids, numbers, strict=True)}
    rows = dict.fromkeys(ids, 0) if calibration is None else calibration.rows(ids)
    return Decline(
        share=share,
        rows=rows,
        thresholds=thresholds,
        needed=rows_needed(share),
        warnings=too_few(rows, share),
    )


def publish(
    session: Session,
    result: RecomposeResult,
    *,
    writer: Writer,
    lock: LockFile | None = None,
    keep: bool = False,
) -> Receipt:
    """Store every byte that the composition needs and make it the current generation.

    Args:
        session: The session whose home is written to.
        result: The composition.
        writer: The home's writer.
        lock: The lock that was followed; the published lock is bitwise identical to it.
        keep: Whether the current generation stays if it is this very composition.

    Returns:
        The receipt, with the number of the generation that is current now.
    """
    store, generations, inputs = session.store, session.generations, result.inputs
    # Bytes first: a generation never names what the store does not hold yet.
    store.put(inputs.files.files, digest=inputs.files.digest)
    for expert in inputs.candidates.experts.values():
        store.put(expert.files.files, digest=expert.files.digest)
    draft = _draft(result, session)
    receipt = msgspec.structs.replace(
        result.receipt, generation=generations.next_number(), parent=generations.current()
    )
    parts = {CALIBRATION: result.composed.calibration, MOMENTS: result.composed.moments}
    files = {name: part.save() for name, part in parts.items() if part is not None}
    files["router.safetensors"] = result.router_bytes
    record, current = draft if lock is None else _as_locked(draft, lock), inputs.previous.record
    if (
        keep
        and current is not None
        and inputs.previous.model is not None  # one that cannot be loaded is replaced
        and _is_made_of(current, record, files, generations)
    ):
        return msgspec.structs.replace(receipt, generation=current.number, parent=current.parent)
    files[RECEIPT] = msgspec.json.format(msgspec.json.encode(receipt), indent=2) + b"\n"
    generations.publish(record, files, writer=writer)
    return receipt


def _is_made_of(
    current: Composition, draft: Composition, files: Mapping[str, bytes], generations: Generations
) -> bool:
    """Return whether a draft equals the current generation, intact on disk and in the lock."""
    renumbered = msgspec.structs.replace(
        draft,
        number=current.number,
        parent=current.parent,
        created=current.created,
        files=current.files,
        digest=current.digest,
    )
    if renumbered != current or {*files, RECEIPT} != {*current.files}:
        return False
    try:
        stored = {name: generations.file(current, name) for name in current.files}
        locked = read_lock(generations.home / LOCK)
    except RedhostError:
        return False  # damaged: publishing again repairs it
    # Compared byte by byte: a damaged generation is published again, which repairs it.
    return locked == lock_for(current) and all(stored[name] == x for name, x in files.items())


def refuse_drift(
    inputs: RecomposeInputs, lock: LockFile, *, plugins: Mapping[str, str] | None = None
) -> None:
    """Refuse to follow a lock that differs from what is installed.

    Args:
        inputs: The installed parts.
        lock: The lock.
        plugins: Distribution → digest of the plugins that made a part; not compared when None.

    Raises:
        CompositionError: If anything differs.
    """
    differences = drift(
        lock,
        tuple(inputs.candidates.statuses.values()),
        fingerprint=inputs.files.manifest.fingerprint,
        digest=inputs.files.digest,
        plugins=plugins,
    )
    if differences:
        failing = {r.expert: r.violations[0] for r in inputs.candidates.rejected}
        # What is here, and may not join, says more than that it is not among those that did.
        first = min(differences, key=lambda d: d.id not in failing)
        several, fault = "s" if len(differences) > 1 else "", failing.get(first.id)
        raise CompositionError(
            f"what is installed differs from the lock ({len(differences)} difference{several}); "
            f"{first.id} is {fault.code.replace('_', ' ') if fault else first.kind}",
            expected=first.locked,
            found=fault.found if fault else first.installed,
            hint=f"{fault.hint if fault else 'Install what the lock names.'} Or recompose without "
            "--locked.",
        )


def locked_router(inputs: RecomposeInputs, lock: LockFile, *, generations: Generations) -> bytes:
    """Return the router weights that a lock names, if the installed parts match the lock.

    Raises:
        MissingError: If no generation here holds its router.
        CompositionError: If anything installed differs from the lock.
    """
    refuse_drift(inputs, lock)
    # Newest first: a lock mostly names the last generation, and each older one is read from disk.
    for record in reversed(generations.history()):
        if record.router.digest == lock.router.digest:
            return generations.file(record, "router.safetensors")
    raise MissingError(
        f"no generation in {generations.home} holds the lock's router",
        expected=short(lock.router.digest),
        hint="Recompose without --locked: the same experts and seed give the same router.",
    )


def _as_locked(draft: Composition, lock: LockFile) -> Composition:
    """Return the record with the lock's entries, so that the lock stays as it is.

    The digests are equal, but the same bytes may have come from another source this time.
    """
    return msgspec.structs.replace(
        draft,
        backbone=lock.backbone if lock.backbone.digest else draft.backbone,
        experts=tuple(Member(id=i, **msgspec.structs.asdict(p)) for i, p in lock.experts.items()),
        settings=lock.settings,
    )


def _members(
    inputs: RecomposeInputs, origins: Mapping[str, Provenance], *, home: Path
) -> Iterator[Member]:
    """Yield the experts; a known origin is kept as long as the digest is the same."""
    for expert_id, expert in inputs.candidates.experts.items():
        status, digest = inputs.candidates.statuses[expert_id], expert.files.digest
        # pip records no wheel for what it was given by name; equal bytes had one before.
        origin = (
            status.origin if status.origin and status.origin.wheel else origins.get(digest)
        ) or installed_wheel(status.package, digest)
        yield Member(
            id=expert_id,
            dist=status.package.dist,
            version=status.package.version,
            digest=digest,
            wheel=origin.wheel,
            signer=origin.signer,
            source=recorded_place(origin.source, home),
        )


def _draft(result: RecomposeResult, session: Session) -> Composition:
    """Return the record of the composition to publish."""
    inputs, router, digest = result.inputs, result.receipt.router, result.inputs.files.digest
    origins = session.generations.origins() if inputs.previous.record else {}
    base = origins.get(digest) or installed_wheel(inputs.package, digest)
    settings: dict[str, Scalar] = {
        "question": question_of(session.home),
        "decline": result.composed.decline,
        "prior": router.prior,
        "device": result.composed.backbone.trunk.engine,
    }
    return Composition(
        backbone=BackboneRecord(
            id=inputs.files.manifest.id,
            fingerprint=inputs.files.manifest.fingerprint,
            digest=digest,
            dist=inputs.package.dist,
            version=inputs.package.version,
            wheel=base.wheel or UNSET,
            source=recorded_place(base.source, session.home) or UNSET,
        ),
        experts=tuple(_members(inputs, origins, home=session.home)),
        router=RouterRecord(
            kind=router.kind,
            level=router.level,
            digest=router.digest,
            seed=result.receipt.seed,
            columns=router.columns,
            rows=router.rows,
        ),
        output="mixture" if result.composed.bus.own else "residual",
        providers=dict(sorted(inputs.providers.items())),
        settings={name: value for name, value in settings.items() if value is not None},
    )
