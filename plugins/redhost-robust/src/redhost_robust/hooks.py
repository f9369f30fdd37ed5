"""The plugin's hook: four kinds of routers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from redhost import hookimpl

if TYPE_CHECKING:
    from redhost import BusConfig, Router
    from redhost.core.plugins.hooks import Register, RouterFactory

__all__ = ["build_router", "redhost_register_routers"]


@hookimpl
def redhost_register_routers(register: Register[RouterFactory]) -> None:
    """Register the kinds `attention`, `blend`, `robust` and `shortlist`."""
    for kind in ("attention", "blend", "robust", "shortlist"):
        register(kind, build_router)


def build_router(kind: str, bus: BusConfig, columns: tuple[str, ...], seed: int) -> Router:
    """Return an untrained router; the modules of the kinds are imported when one is asked for.

    Args:
        kind: One of the kinds, with options after a colon.
        bus: The configuration of its bus.
        columns: The columns' names.
        seed: The seed of random initial weights.

    Raises:
        UsageError: If the kind lacks an option, or an option's value is not allowed.
    """
    from redhost.plugins import router_factory

    from .routers import KINDS

    factories = {k.kind: router_factory(k) for k in KINDS}
    return factories[kind.partition(":")[0]](kind, bus, columns, seed)
