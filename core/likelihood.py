"""How well each column alone answers the rows a router learns from: p_k(y_n|x_n)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from .bus import Bus
from .cards import Card
from .routers.base import ColumnData
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
    fit = [r for r in card.rows if r.part == "fit"]
    h = encode([r.text for r in fit])
    answer = torch.tensor([bus.labels.index(r.label) for r in fit])
    with torch.no_grad():
        p = bus.each(h, bus.norm(h))  # (N, K, L)
    chosen = p.gather(2, answer[:, None, None].expand(-1, p.shape[1], 1)).squeeze(2)
    return dataclasses.replace(data, likelihood=chosen)
