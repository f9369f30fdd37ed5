"""What each domain loses without each expert: the router retrained without it, in memory."""

from __future__ import annotations

from collections.abc import Sequence

from .assemble import make_router
from .bus import BACKBONE, Bus
from .composed import Composed
from .evaluate import Encode, columns_data
from .layout import WideNorm
from .plugins import Plugins
from .rows import Row
from .train_router import RouterSettings, train_router

__all__ = ["leave_one_out"]


def leave_one_out(
    composed: Composed, rows: Sequence[Row], *, encode: Encode, plugins: Plugins
) -> dict[str, dict[str, float]]:
    """Return, for each expert left out, the accuracy by domain.

    Args:
        composed: The composition; it is left as it is.
        rows: Labelled rows.
        encode: Texts → h.
        plugins: Who makes the routers.
    """
    h = encode([r.text for r in rows])
    return {
        i: _without(composed, i, encode=encode, plugins=plugins).accuracy(h, rows)
        for i in composed.bus.ids
        if len(composed.bus.ids) > 1
    }


def _without(composed: Composed, expert_id: str, *, encode: Encode, plugins: Plugins) -> Composed:
    """Return the composition without one expert, its router trained from the same seed."""
    bus = composed.bus
    experts = {i: e for i, e in zip(bus.ids, bus.parts(), strict=True) if i != expert_id}
    columns = tuple(c for c in bus.columns if c != expert_id)
    router = make_router(
        composed.router_kind,
        bus=composed.backbone.bus_config(),
        columns=columns,
        seed=composed.seed,
        plugins=plugins,
        providers={},
    )
    smaller = Composed(
        backbone=composed.backbone,
        bus=Bus(
            norm=bus.norm.norm if isinstance(bus.norm, WideNorm) else bus.norm,
            router=router,
            experts=experts,
            classifier=composed.backbone.classifier,
            labels=composed.backbone.labels,
            task=composed.backbone.task,
            backbone_column=BACKBONE in columns,
            layout=bus.layout,
        ),
        cards={i: c for i, c in composed.cards.items() if i != expert_id},
        background=composed.background,
        evaluation=composed.evaluation,
        fingerprint=composed.fingerprint,
        router_kind=composed.router_kind,
        seed=composed.seed,
    )
    data = columns_data(smaller, encode=encode)
    train_router(router, data, columns=columns, settings=RouterSettings())
    return smaller
