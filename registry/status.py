"""What is composed, and how what is installed has drifted from it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .generations import Generations
from .inventory import current_record, take_inventory
from .leases import Lease, Leases
from .lock import Drift, derive, drift

__all__ = ["Status", "take_status"]


@dataclass(frozen=True, kw_only=True)
class Status:
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
    generation: int | None
    parent: int | None
    backbone: str | None
    fingerprint: str | None
    experts: tuple[str, ...]
    router: str | None
    drift: tuple[Drift, ...]
    held: tuple[Lease, ...]
    leftovers: tuple[str, ...]


def take_status(home: Path) -> Status:
    """Compare the current generation of a home with what is installed."""
    record = current_record(home)
    held, leftovers = Leases(home).live(), Generations(home).leftovers()
    if record is None:
        return Status(
            home=str(home),
            generation=None,
            parent=None,
            backbone=None,
            fingerprint=None,
            experts=(),
            router=None,
            drift=(),
            held=held,
            leftovers=leftovers,
        )
    inventory = take_inventory(home, backbone=record.backbone.id)
    fingerprint = inventory.backbone.fingerprint if inventory.backbone else "none"
    return Status(
        home=str(home),
        generation=record.number,
        parent=record.parent,
        backbone=record.backbone.id,
        fingerprint=record.backbone.fingerprint,
        experts=tuple(m.id for m in record.experts),
        router=f"{record.router.kind} ({record.router.level}, seed {record.router.seed})",
        drift=drift(derive(record), inventory.listings, fingerprint=fingerprint),
        held=held,
        leftovers=leftovers,
    )
