"""From a selection to a composition that passed every gate; nothing is published here."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from ...registry.composition import Composition
from ...registry.errors import HarmError, MissingError, PluginError, RedhostError, UsageError
from ...registry.lock import LOCK, LockFile
from ...registry.lock import read as read_lock
from ...registry.settings import Settings
from ..answering.composed import Composed
from ..progress import Progress
from .bench import Level, Order
from .publish import locked_router, refuse_drift
from .recompose import Outcome, recompose
from .selection import Selection
from .workspace import DEFAULT_ROUTERS, Workspace, open_workspace

if TYPE_CHECKING:
    from ..host import Host

__all__ = ["compose_selection", "lock_to_follow", "make_order"]

log = logging.getLogger("redhost")


def make_order(settings: Settings, selection: Selection, *, accept: bool) -> Order:
    """Return the order that settings amount to for a selection."""
    return Order(
        router=settings.router or DEFAULT_ROUTERS[selection.files.manifest.task],
        level=settings.level or "full",
        seed=settings.seed or 0,
        tolerance=settings.tolerance,
        accept=accept,
    )


def lock_to_follow(home: Path, flags: Settings) -> LockFile:
    """Return the lock of a home; flags may not say otherwise than it does.

    Raises:
        MissingError: If there is none.
        UsageError: If a flag contradicts it.
    """
    lock = read_lock(home / LOCK)
    if lock is None:
        raise MissingError("there is no lock to follow", hint="Run 'redhost recompose' once.")
    said = {"router": lock.router.kind, "level": lock.router.level, "seed": lock.router.seed}
    for name, value in said.items():
        wanted = getattr(flags, name)
        if wanted not in {None, value}:
            raise UsageError(
                f"--locked uses the {name} of the lock",
                expected=str(value),
                found=str(wanted),
                hint="Leave it out, or recompose without --locked.",
            )
    return lock


def compose_selection(
    host: Host,
    selection: Selection,
    order: Order,
    *,
    lock: LockFile | None = None,
    progress: Progress | None = None,
) -> tuple[Workspace, Outcome]:
    """Check, build, train and judge; publish nothing.

    Args:
        host: Whose current generation it is compared with.
        selection: The backbone and the experts.
        order: What to do with them.
        lock: Where router and settings come from instead of training.
        progress: Called with (steps done, steps in all).

    Raises:
        HarmError: If something that worked would stop working.
    """
    record, previous = _previous(host, accept=order.accept)
    workspace = open_workspace(
        selection.package,
        selection.files,
        selection.listings,
        plugins=host.plugins,
        cache=host.cache,
        device=host.device,
        record=record,
        previous=previous,
        progress=progress,
        ahead=host.ahead(progress),
    )
    if lock is None:
        return workspace, recompose(workspace.bench, order, progress=progress)
    weights = locked_router(workspace, lock, generations=host.generations)
    order = replace(
        order,
        router=lock.router.kind,
        level=cast("Level", lock.router.level),
        seed=lock.router.seed,
    )
    outcome = recompose(workspace.bench, order, weights=weights, progress=progress)
    # Only now is it known which plugins make the norm and the router.
    refuse_drift(workspace, lock, plugins=workspace.bench.providers)
    return workspace, outcome


def _previous(host: Host, *, accept: bool) -> tuple[Composition | None, Composed | None]:
    """Return the current generation; with `accept`, one that cannot be loaded is let go.

    Raises:
        HarmError: If it cannot be loaded, so that nothing can be compared with it.
    """
    current = host.generations.current()
    if current is None:
        return None, None
    record = None
    try:
        record = host.generations.load(current)
        return record, host.load(current)
    except RedhostError as e:
        if accept:
            log.warning("not compared with generation %s: %s", current, e.reason)
            return record, None
        anew = "Repair it, or compose anew with --accept."
        raise HarmError(
            f"generation {current} cannot be loaded, so nothing is compared with it: {e.reason}",
            hint=e.hint if isinstance(e, PluginError) else anew,
        ) from e
