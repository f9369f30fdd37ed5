"""A composition from parts in memory, without packages, cards or publishing."""

from __future__ import annotations

import redhost

__all__ = ["in_memory"]


def in_memory(backbone: redhost.Backbone, bus: redhost.Bus, *, kind: str) -> redhost.ComposedModel:
    """Return a composition of a backbone and a bus.

    Args:
        backbone: The backbone.
        bus: The bus; it is frozen.
        kind: Its router's kind.
    """
    return redhost.ComposedModel(
        backbone=backbone,
        bus=bus.eval().requires_grad_(False),
        cards={},
        background=(),
        evaluation=(),
        fingerprint="",
        router_kind=kind,
        seed=0,
    )
