"""The same experts, or some of them, under a router of another kind, trained in memory."""

from __future__ import annotations

from collections.abc import Sequence

from ..answering.composed import Composed
from ..bus import BACKBONE, Bus
from ..encode import Encode
from ..extending.assemble import make_router
from ..extending.plugins import Plugins
from ..layout import WideNorm
from ..learning.likelihood import with_likelihood
from ..learning.train_router import RouterSettings, train_router
from .evaluate import columns_data

__all__ = ["reroute"]


def reroute(
    composed: Composed,
    *,
    kind: str,
    ids: Sequence[str],
    encode: Encode,
    plugins: Plugins,
) -> Composed:
    """Return some experts of a composition under a fresh router, from the composition's seed.

    Args:
        composed: The composition; it is left as it is.
        kind: The router's kind, with options.
        ids: The experts to keep.
        encode: Texts → h, usually through the feature cache.
        plugins: Who makes the router.
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
    made = Composed(
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
        cards={i: c for i, c in composed.cards.items() if i in experts},
        background=composed.background,
        evaluation=composed.evaluation,
        fingerprint=composed.fingerprint,
        router_kind=kind,
        seed=composed.seed,
    )
    data = columns_data(made, encode=encode, router=router)
    if getattr(router, "reads_answers", False):
        data = with_likelihood(
            data, bus=made.bus, cards=made.cards, encode=encode, unfold=made.backbone.unfold
        )
    train_router(router, data, columns=columns, settings=RouterSettings())
    return made
