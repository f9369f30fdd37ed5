"""The plugin's hooks: the task `generation` and the causal routers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from redhost import hookimpl
from redhost_generate.tokens import Tokens
from redhost_generate.vocabulary_head import VocabularyHead

if TYPE_CHECKING:
    from redhost import BusConfig, Router
    from redhost.core.plugins.hooks import Register, RegisterTask, RouterFactory

__all__ = ["redhost_register_routers", "redhost_register_tasks"]


@hookimpl
def redhost_register_tasks(register: RegisterTask) -> None:
    """Register the task `generation`."""
    register("generation", VocabularyHead, unit=Tokens)


@hookimpl
def redhost_register_routers(register: Register[RouterFactory]) -> None:
    """Register the kinds `causal` and `causal-mixture`."""
    for kind in ("causal", "causal-mixture"):
        register(kind, _router)


def _router(kind: str, bus: BusConfig, columns: tuple[str, ...], seed: int) -> Router:
    """Return an untrained router; its module is imported when one is asked for."""
    from redhost.plugins import router_factory
    from redhost_generate.causal import KINDS

    made = {k.kind: router_factory(k) for k in KINDS}[kind.partition(":")[0]]
    return made(kind, bus, columns, seed)
