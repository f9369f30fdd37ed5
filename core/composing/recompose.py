"""Recompose: retrain only the router over the experts that passed, and judge the outcome.

`recompose` is the order of events; each step is one function below it. Nothing below the bus
moves, and the receipt proves it by digests taken before and after (law 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import safetensors.torch
from torch import nn

from ...registry.errors import UsageError
from ..answering.composed import Composed
from ..bus import BACKBONE, Bus
from ..clock import Clock
from ..digests import tensor_digest
from ..extending.assemble import Attached, load_router, make_bus, make_norm, make_router
from ..layout import WideNorm
from ..learning.learn import column_names, learn_columns
from ..learning.likelihood import with_likelihood
from ..learning.train_router import train_router
from ..progress import Progress
from ..receipt import Change, Receipt, RouterReceipt
from ..routers import KINDS, ColumnData, Router
from .bench import Bench, Order
from .gates import judge_gates, refuse_bits, refuse_harm

__all__ = ["Outcome", "learn", "recompose"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """A composition that passed, not yet published."""

    composed: Composed
    receipt: Receipt
    router_bytes: bytes


def recompose(
    bench: Bench, order: Order, *, weights: bytes | None = None, progress: Progress | None = None
) -> Outcome:
    """Train the router and judge the composition.

    Args:
        bench: The parts.
        order: What to do with them.
        weights: Router weights to use instead of training (``--locked``).
        progress: Called with (steps done, steps in all) while the router trains.

    Raises:
        HarmError: If a domain that was composed before loses more than the tolerance.
        CardError: If a card cannot teach the router.
        UsageError: If the level is not one this router has.
    """
    clock = Clock()
    before = _digests(bench)
    clock.lap("digests")
    norm = make_norm(
        bus=bench.backbone.bus_config(), plugins=bench.plugins, providers=bench.providers
    )
    router, report = _router(
        bench, order, norm=norm, weights=weights, progress=progress, clock=clock
    )
    composed = _compose(bench, order, router, columns=report.columns)
    gates = judge_gates(bench, composed)
    accuracy = gates.accuracy
    clock.lap("judge")
    if not order.accept:
        refuse_harm(accuracy, tolerance=order.tolerance)
        refuse_bits(gates.bits, tolerance=order.tolerance)
    after = _digests(bench)
    clock.lap("digests")
    receipt = Receipt(
        generation=None,
        parent=bench.previous.generation if bench.previous else None,
        router=report,
        backbone=Change(before=before[""], after=after[""]),
        experts={i: Change(before=before[i], after=after[i]) for i in bench.candidates.attached},
        left_out=bench.candidates.left_out,
        withdrawn=bench.candidates.withdrawn,
        not_gated=tuple(i for i in bench.candidates.attached if i not in accuracy.after),
        accuracy=accuracy,
        seconds=sum(clock.steps.values()),
        seed=order.seed,
        health=gates.health,
        bits=gates.bits,
        steps=clock.steps,
    )
    return Outcome(composed=composed, receipt=receipt, router_bytes=_to_bytes(router))


def learn(
    bench: Bench, order: Order, *, norm: nn.Module, router: nn.Module | None = None
) -> list[ColumnData]:
    """Return the data of every column of the composition to be, for one router or for any."""
    attached = bench.candidates.attached
    return learn_columns(
        {i: a.card for i, a in attached.items()},
        {i: a.tapping.part for i, a in attached.items()},
        bench.background,
        backbone_column=BACKBONE if order.backbone_column else None,
        norm=norm if bench.backbone.layout is None else WideNorm(norm, bench.backbone.layout),
        layout=bench.backbone.layout,
        classifier=bench.backbone.classifier,
        encode=bench.encode,
        seed=order.seed,
        router=router,
    )


def _router(
    bench: Bench,
    order: Order,
    *,
    norm: nn.Module,
    weights: bytes | None,
    progress: Progress | None,
    clock: Clock,
) -> tuple[nn.Module, RouterReceipt]:
    """Make the router and set its weights: trained at a level, or given."""
    columns = column_names(
        bench.candidates.attached,
        bench.background,
        backbone_column=BACKBONE if order.backbone_column else None,
    )
    router = make_router(
        order.router,
        bus=bench.backbone.bus_config(),
        columns=columns,
        seed=order.seed,
        plugins=bench.plugins,
        providers=bench.providers,
    )
    data = learn(bench, order, norm=norm, router=router)
    if weights is None and getattr(router, "reads_answers", False):
        bus = _bus(bench, router, columns)
        cards = {i: a.card for i, a in bench.candidates.attached.items()}
        unfold = bench.backbone.unfold
        data = with_likelihood(data, bus=bus, cards=cards, encode=bench.encode, unfold=unfold)
    clock.lap("learn")
    moved = columns
    if weights is not None:
        load_router(router, weights)
        moved = ()
    else:
        moved = _train(bench, order, router, data, progress=progress)
    clock.lap("train")
    return router, RouterReceipt(
        kind=order.router,
        level=order.level,
        seconds=clock.steps["train"],
        rows=sum(len(d.z) for d in data),
        digest=tensor_digest(router.state_dict()),
        columns=columns,
        moved=moved,
        robust=getattr(router, "found", None),
    )


def _train(
    bench: Bench,
    order: Order,
    router: nn.Module,
    data: Sequence[ColumnData],
    *,
    progress: Progress | None,
) -> tuple[str, ...]:
    """Train at the level asked for; return the columns that moved."""
    columns = tuple(d.column for d in data)
    only = None
    if order.level == "zero" and not (isinstance(router, Router) and router.closed_form):
        raise UsageError(
            f"a {order.router!r} router has no level 'zero'",
            expected="one with a closed form: " + ", ".join(k.kind for k in KINDS if k.closed_form),
            found=order.router,
            hint="Use --level full, or --router statistics.",
        )
    if order.level == "row":
        only = _adopt(bench, order, router, columns)
    train_router(
        router, data, columns=columns, settings=order.settings, only=only, progress=progress
    )
    return columns if only is None else only


def _adopt(
    bench: Bench, order: Order, router: nn.Module, columns: tuple[str, ...]
) -> tuple[str, ...]:
    """Start from the parent's router; return the columns that are new or replaced."""
    previous = bench.previous
    parent = previous.bus.router if previous else None
    if (
        previous is None
        or not isinstance(router, Router)
        or not isinstance(parent, Router)
        or previous.router_kind != order.router
        or previous.fingerprint != bench.fingerprint
    ):
        raise UsageError(
            "level 'row' moves single columns of the current generation's router",
            expected=f"a current generation with a {order.router!r} router on this backbone",
            found="none" if previous is None else f"a {previous.router_kind!r} router",
            hint="Use --level full.",
        )
    keep = {c for c in columns if c in bench.unchanged or c == BACKBONE} & set(parent.columns)
    router.adopt(parent, keep=keep)
    return tuple(c for c in columns if c not in keep)


def _compose(
    bench: Bench, order: Order, router: nn.Module, *, columns: tuple[str, ...]
) -> Composed:
    attached = bench.candidates.attached
    return Composed(
        backbone=bench.backbone,
        bus=_bus(bench, router, columns),
        cards={i: a.card for i, a in attached.items()},
        background=bench.background,
        evaluation=bench.evaluation,
        fingerprint=bench.fingerprint,
        router_kind=order.router,
        seed=order.seed,
    )


def _bus(bench: Bench, router: nn.Module, columns: tuple[str, ...]) -> Bus:
    return make_bus(
        bench.backbone,
        bench.candidates.attached,
        router,
        columns,
        plugins=bench.plugins,
        providers=bench.providers,
    )


def _digests(bench: Bench) -> dict[str, str]:
    """Return the digests of the backbone (under the empty name) and of every expert's tensors."""
    digests = {i: _expert_digest(a) for i, a in bench.candidates.attached.items()}
    return {"": bench.backbone.fingerprint(), **digests}


def _expert_digest(attached: Attached) -> str:
    return tensor_digest(attached.expert.state_dict())


def _to_bytes(router: nn.Module) -> bytes:
    return safetensors.torch.save({k: v.contiguous() for k, v in router.state_dict().items()})
