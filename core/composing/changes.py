"""Change the current composition by exactly one expert: attach, detach, replace.

The members that stay come from the store, so nothing needs to be installed, and what happens to
be installed changes nothing. Before the first generation there are no members to start from: then
it is what is installed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, TypedDict

from ...registry.composition import Composition
from ...registry.errors import ContractError, HarmError, MissingError, RedhostError
from ...registry.settings import Settings
from ...registry.states import Listing
from ..progress import Progress
from ..receipt import Receipt
from .bench import Level
from .compose import compose_selection, make_order
from .publish import publish
from .selection import Selection, Source, change, read_source, select_installed, select_stored

if TYPE_CHECKING:
    from ..host import Host

__all__ = ["ChangeOptions", "change_members"]

Around = Callable[[Listing | None], AbstractContextManager[None]]


class ChangeOptions(TypedDict, total=False):
    """How a changed composition is made; what is left out stays as it was composed.

    ``router``, ``level``, ``seed`` and ``tolerance`` as in `Host.recompose`; ``accept`` publishes
    even if a domain loses more than the tolerance; ``progress`` is called with (steps done, steps
    in all). The level is ``full`` unless it is given: what joined by ``row`` did not move others.
    """

    router: str | None
    level: Level | None
    seed: int | None
    tolerance: float | None
    accept: bool
    progress: Progress | None


def change_members(
    host: Host,
    *,
    put: Source | None = None,
    take: str | None = None,
    update: bool = False,
    around: Around | None = None,
    options: ChangeOptions | None = None,
) -> Receipt:
    """Compose the current members changed by one expert, and publish that.

    Args:
        host: Whose home.
        put: The expert that joins.
        take: The id of the one that leaves.
        update: Whether a member of the same id as `put` leaves for it.
        around: Entered once every gate has passed, left when the generation is published; what
            it raises publishes nothing, and it sees what a failing publish raises.
        options: How it is made.

    Raises:
        RedhostError: If anything fails; the current generation is then what it was.
    """
    told = options or {}
    with host.generations.writer() as writer:
        record = _record(host)
        if record is None and take is not None:
            raise MissingError(
                f"nothing is composed in {host.home}", hint="Run 'redhost recompose'."
            )
        selection = _start(host, record)
        joins = _read(host, put, selection)
        if joins is not None and (update or record is None) and joins.id in selection.ids:
            take = joins.id
        workspace, outcome = compose_selection(
            host,
            changed := change(selection, put=joins, take=take),
            make_order(_settings(host, record, told), changed, accept=told.get("accept", False)),
            progress=told.get("progress"),
        )
        if joins is not None:
            _require_attached(joins, outcome.receipt)
        with around(joins) if around else nullcontext():
            receipt = publish(
                workspace, outcome, store=host.store, generations=host.generations, writer=writer
            )
    host.plugins.notify("redhost_composed", receipt=receipt)
    return receipt


def _record(host: Host) -> Composition | None:
    current = host.generations.current()
    return None if current is None else host.generations.load(current)


def _start(host: Host, record: Composition | None) -> Selection:
    if record is None:
        return select_installed(host.home, backbone=host.settings.backbone)
    try:
        return select_stored(record, host.store)
    except RedhostError as e:
        raise HarmError(
            f"generation {record.number} cannot be read from the store, so it cannot be changed",
            found=e.reason,
            hint="Compose what is installed anew with 'redhost recompose --accept'.",
        ) from e


def _read(host: Host, put: Source | None, selection: Selection) -> Listing | None:
    if put is None:
        return None
    keys = host.settings.keys or ()
    return read_source(put, backbone=selection.files.manifest, home=host.home, keys=keys)


def _settings(host: Host, record: Composition | None, told: ChangeOptions) -> Settings:
    """Return the flags, then what the current generation was made with, then the rest."""
    flags = Settings(
        router=told.get("router"),
        level=told.get("level"),
        seed=told.get("seed"),
        tolerance=told.get("tolerance"),
    )
    if record is not None:
        flags = flags.over(Settings(router=record.router.kind, seed=record.router.seed))
    return flags.over(host.settings)


def _require_attached(joins: Listing, receipt: Receipt) -> None:
    """Refuse to leave out the very expert that was asked for."""
    if joins.id in receipt.experts:
        return
    reason = next((x for x in receipt.left_out if x.id == joins.id), None)
    raise ContractError(
        f"{joins.name} was not attached",
        found=f"{reason.code}: {reason.reason}" if reason else "no reason",
        hint=f"See 'redhost check {joins.package.dist}', or ask its author for a new build.",
    )
