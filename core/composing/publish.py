"""Publish what was composed: bytes to the store, then the generation, in one atomic step."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import msgspec

from ...registry.composition import BackboneRecord, Composition, Member, RouterRecord
from ...registry.errors import CompositionError, MissingError, RedhostError, short
from ...registry.generations import Generations
from ...registry.lock import LockFile, drift
from ...registry.states import Listing
from ...registry.store import Store
from ...registry.writer import Writer
from ..receipt import Receipt
from .recompose import Outcome
from .workspace import Workspace

__all__ = ["locked_router", "publish", "refuse_drift"]


def publish(
    workspace: Workspace,
    outcome: Outcome,
    *,
    store: Store,
    generations: Generations,
    writer: Writer,
) -> Receipt:
    """Store every byte the composition needs and make it the current generation.

    Returns:
        The receipt, with the generation's number.
    """
    bench = workspace.bench
    store.put(workspace.files.files, digest=workspace.files.digest)
    for attached in bench.candidates.attached.values():
        store.put(attached.files.files, digest=attached.files.digest)
    receipt = msgspec.structs.replace(
        outcome.receipt, generation=generations.next_number(), parent=generations.current()
    )
    generations.publish(
        _draft(workspace, outcome, known=_known_members(generations)),
        {
            "router.safetensors": outcome.router_bytes,
            "receipt.json": msgspec.json.format(msgspec.json.encode(receipt), indent=2) + b"\n",
        },
        writer=writer,
    )
    return receipt


def refuse_drift(
    workspace: Workspace, lock: LockFile, *, plugins: Mapping[str, str] | None = None
) -> None:
    """Refuse to follow a lock that names something else than what is installed.

    Args:
        workspace: What is installed.
        lock: The lock.
        plugins: Distribution → digest of the plugins that made a part; not compared when None.

    Raises:
        CompositionError: If anything differs.
    """
    bench = workspace.bench
    installed = tuple(bench.candidates.listings.values())
    differences = drift(lock, installed, fingerprint=bench.fingerprint, plugins=plugins)
    if differences:
        first = differences[0]
        raise CompositionError(
            f"what is installed differs from the lock ({len(differences)} differences); "
            f"{first.id} is {first.kind}",
            expected=first.locked,
            found=first.installed,
            hint="Install what the lock names, or recompose without --locked.",
        )


def locked_router(workspace: Workspace, lock: LockFile, *, generations: Generations) -> bytes:
    """Return the router weights a lock names, if what is installed is what it names.

    Raises:
        MissingError: If no generation here holds its router.
        CompositionError: If anything installed differs from the lock.
    """
    refuse_drift(workspace, lock)
    for record in reversed(generations.history()):
        if record.router.digest == lock.router.digest:
            return generations.file(record.number, "router.safetensors")
    raise MissingError(
        f"no generation in {generations.home} holds the lock's router",
        expected=short(lock.router.digest),
        hint="Recompose without --locked: the same experts and seed give the same router.",
    )


def _known_members(generations: Generations) -> dict[str, Member]:
    """Return the members of the current generation by digest: they say where the bytes are from."""
    with suppress(RedhostError):
        if (current := generations.current()) is not None:
            return {m.digest: m for m in generations.load(current).experts}
    return {}


def _draft(workspace: Workspace, outcome: Outcome, *, known: Mapping[str, Member]) -> Composition:
    bench, router = workspace.bench, outcome.receipt.router
    package, files = workspace.package, workspace.files
    return Composition(
        backbone=BackboneRecord(
            id=files.manifest.id,
            fingerprint=files.manifest.fingerprint,
            digest=files.digest,
            dist=package.dist,
            version=package.version,
        ),
        experts=tuple(
            _member(bench.candidates.listings[i], i, known.get(a.files.digest), a.files.digest)
            for i, a in bench.candidates.attached.items()
        ),
        router=RouterRecord(
            kind=router.kind,
            level=router.level,
            digest=router.digest,
            seed=outcome.receipt.seed,
            columns=router.columns,
            rows=router.rows,
        ),
        output="mixture" if outcome.composed.bus.own else "residual",
        providers=dict(sorted(bench.providers.items())),
    )


def _member(listing: Listing, expert_id: str, before: Member | None, digest: str) -> Member:
    """Return an expert's record; what is known of its wheel stays while its bytes do."""
    origin = before if before is not None and not listing.wheel else listing
    return Member(
        id=expert_id,
        dist=listing.package.dist,
        version=listing.package.version,
        digest=digest,
        wheel=origin.wheel,
        signer=origin.signer,
    )
