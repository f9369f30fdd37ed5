"""How well each column alone answers the rows a router learns from: p_k(y_n|x_n)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from .bus import Bus
from .cards import Card
from .routers.base import ColumnData, Judged
from .rows import CardRow
from .tasks import Classification

__all__ = ["with_likelihood"]


def with_likelihood(
    data: Sequence[ColumnData],
    *,
    bus: Bus,
    cards: Mapping[str, Card],
    encode: Callable[[Sequence[str]], Tensor],
) -> list[ColumnData]:
    """Add p_k(y|x) ``(N, K)`` to the columns whose cards tell texts and their labels.

    Of the fit rows, and of the gate rows apart.

    Args:
        data: One for each column of the bus, in its order.
        bus: The experts; its router is not asked.
        cards: The experts' cards by id.
        encode: Texts → h ``(N, D)``.
    """
    return [_with(d, bus, cards.get(d.column), encode) for d in data]


def _with(
    data: ColumnData, bus: Bus, card: Card | None, encode: Callable[[Sequence[str]], Tensor]
) -> ColumnData:
    told = card is not None and card.kind == "texts" and isinstance(bus.task, Classification)
    if card is None or not told:
        return data
    _, fit = _judged(bus, [r for r in card.rows if r.part == "fit"], encode)
    gate = [r for r in card.rows if r.part == "gate"]
    if not gate:
        return dataclasses.replace(data, likelihood=fit)
    z, aside = _judged(bus, gate, encode)
    return dataclasses.replace(data, likelihood=fit, gate=Judged(z=z, likelihood=aside))


def _judged(
    bus: Bus, rows: Sequence[CardRow], encode: Callable[[Sequence[str]], Tensor]
) -> tuple[Tensor, Tensor]:
    """Return z ``(N, D)`` and p_k of each row's label ``(N, K)``."""
    h = encode([r.text for r in rows])
    answer = torch.tensor([bus.labels.index(r.label) for r in rows])
    with torch.no_grad():
        z = bus.norm(h)
        p = bus.each(h, z)  # (N, K, L)
    chosen = p.gather(2, answer[:, None, None].expand(-1, p.shape[1], 1)).squeeze(2)
    return bus.layout.narrow(z), chosen
