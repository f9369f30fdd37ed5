"""Train a router and nothing else: the optimiser has exactly the router's parameters."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from ..adamw import AdamW, cosine_rates
from ..bus.signals import RouterSignals
from ..routers.base import ColumnData, Router
from ..types import Progress, in_stage


@dataclass(frozen=True, kw_only=True)
class RouterSettings:
    """How a router without a closed form is trained.

    Attributes:
        steps: Steps of AdamW over all rows at once.
        learning_rate: Peak, decayed to zero along a cosine.
        weight_decay: AdamW's.
        smoothing: Label smoothing of the cross-entropy to the column.
    """

    steps: int = 200
    learning_rate: float = 5e-3
    weight_decay: float = 0.01
    smoothing: float = 0.0


def train_router(
    router: Router,
    data: Sequence[ColumnData],
    *,
    columns: Sequence[str],
    settings: RouterSettings,
    only: Collection[str] | None = None,
    progress: Progress | None = None,
) -> None:
    """Set a router's weights from the columns' data.

    Routers with a closed form are solved. Others minimise the cross-entropy to the column's index;
    every column has the same weight, independent of the number of its rows.

    Args:
        router: z ``(B, D)`` → logits ``(B, K)``.
        data: The data of each column, in the columns' order.
        columns: The K columns.
        settings: How to train.
        only: For level ``row``: the columns that may change; all others stay bitwise identical.
        progress: Called with (steps done, steps in all).
    """
    if router.closed_form:
        router.solve(data, only=only)
        router.requires_grad_(False)
        return
    if only is None:
        router.prepare(data)
    progress = in_stage(progress, "router")
    try:
        router.requires_grad_(True)
        _descend(router, data, columns, settings, only, progress)
        if only is None:
            router.fine_tune(data, steps=settings.steps, progress=progress)
    finally:
        router.requires_grad_(False)


def make_optimizer(router: Router, settings: RouterSettings, *, rows_only: bool = False) -> AdamW:
    """Return the optimiser over all parameters, or those with a row for each column.

    With `rows_only` there is no weight decay, so rows with zero gradient stay bitwise identical.

    Raises:
        UsageError: If single columns of this router cannot be trained.
    """
    if not rows_only:
        return AdamW(router.parameters(), weight_decay=settings.weight_decay)
    return AdamW(router.column_parameters(), weight_decay=0.0)


def _descend(
    router: Router,
    data: Sequence[ColumnData],
    columns: Sequence[str],
    settings: RouterSettings,
    only: Collection[str] | None,
    progress: Progress | None,
) -> None:
    """Minimise Σ_n w_n · CE(router(z_n), column_n) + the router's own penalty."""
    if only is not None and not router.column_parameters():
        return  # no parameter belongs to a column
    signals_of = [d.signals for d in data if d.signals is not None]
    signals = (
        RouterSignals.concat(signals_of) if router.reads and len(signals_of) == len(data) else None
    )
    z = torch.cat([d.z for d in data])  # (N, W), the rows of all columns
    target = torch.cat([torch.full((len(d.z),), columns.index(d.column)) for d in data])
    weight = torch.cat([torch.full((len(d.z),), 1 / len(d.z)) for d in data]) / len(data)
    generator = torch.Generator().manual_seed(router.seed)
    optimizer = make_optimizer(router, settings, rows_only=only is not None)
    may_move = torch.tensor([float(only is None or c in only) for c in columns])
    rates = cosine_rates(settings.learning_rate, settings.steps)
    for step, rate in enumerate(rates, start=1):
        logits = router.training_logits(z, signals, generator=generator)  # (N, K)
        losses = nn.functional.cross_entropy(
            logits, target, reduction="none", label_smoothing=settings.smoothing
        )
        optimizer.zero_grad()
        ((losses * weight).sum() + router.penalty(logits, weight)).backward()  # type: ignore[no-untyped-call]
        if only is not None:
            for grad in (p.grad for p in optimizer.parameters if p.grad is not None):
                grad.mul_(may_move.reshape(-1, *[1] * (grad.dim() - 1)))
        optimizer.step(rate)
        if progress is not None:
            progress(step, settings.steps)
