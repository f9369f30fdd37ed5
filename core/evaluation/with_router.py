"""Retrain a router of another kind over all or some experts of a composition, in memory."""

from __future__ import annotations

from collections.abc import Sequence

from ..bus.bus import BACKBONE
from ..bus.layout import WideNorm
from ..model.build import build_bus, make_router
from ..model.composed import ComposedModel
from ..plugins.manager import Plugins
from ..training.router import RouterSettings, train_router
from ..training.router_data import columns_data
from ..types import Encode, Row


def with_router(
    composed: ComposedModel,
    *,
    kind: str,
    ids: Sequence[str],
    encode: Encode,
    plugins: Plugins,
) -> ComposedModel:
    """Return some experts of a composition under a new router, trained with the composition's seed.

    Args:
        composed: The composition, which is not changed.
        kind: The router's kind, with options.
        ids: The experts to keep.
        encode: Texts → h, usually through the feature cache.
        plugins: The plugins that may make the router.
    """
    bus = composed.bus
    experts = {i: e for i, e in zip(bus.ids, bus.parts(), strict=True) if i in ids}
    columns = tuple(c for c in bus.columns if c in experts or c == BACKBONE)
    router = make_router(
        kind,
        bus=composed.backbone.bus_config(),
        columns=columns,
        seed=composed.seed,
        plugins=plugins,
        providers={},
    )
    norm = bus.norm.norm if isinstance(bus.norm, WideNorm) else bus.norm
    model = ComposedModel(
        backbone=composed.backbone,
        bus=build_bus(
            composed.backbone,
            norm=norm,
            router=router,
            experts=experts,
            columns=columns,
            combiner=bus.ensemble.combiner,
        ),
        cards={i: c for i, c in composed.cards.items() if i in experts},
        background=composed.background,
        evaluation=composed.evaluation,
        fingerprint=composed.fingerprint,
        router_kind=kind,
        seed=composed.seed,
    )
    data = columns_data(model, encode=encode, reads=router.reads)
    train_router(router, data, columns=columns, settings=RouterSettings())
    return model


def leave_one_out(
    composed: ComposedModel, rows: Sequence[Row], *, encode: Encode, plugins: Plugins
) -> dict[str, dict[str, float]]:
    """Return, for each expert left out, the accuracy by domain.

    Args:
        composed: The composition, which is not changed.
        rows: Labelled rows.
        encode: Texts → h.
        plugins: The plugins that may make routers.
    """
    h, ids = encode([r.text for r in rows]), composed.bus.ids
    units = composed.backbone.unit_rows(rows)
    return {
        i: with_router(
            composed,
            kind=composed.router_kind,
            ids=[other for other in ids if other != i],
            encode=encode,
            plugins=plugins,
        ).accuracy(h, units)
        for i in ids
        if len(ids) > 1
    }
