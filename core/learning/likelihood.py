"""How well each column alone answers the rows a router learns from: p_k(y_n|x_n)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from ..bus import Bus
from ..encode import Encode
from ..pieces import pieces
from ..routers.base import ColumnData, Judged
from ..rows import Row
from ..sketch import sketch, together
from ..tasks import Regression
from .cards import Card

__all__ = ["with_likelihood"]

Unfold = Callable[[Sequence[Row]], list[Row]]


def with_likelihood(
    data: Sequence[ColumnData],
    *,
    bus: Bus,
    cards: Mapping[str, Card],
    encode: Encode,
    unfold: Unfold = list,
) -> list[ColumnData]:
    """Add p_k(y|x) ``(N, K)`` to the columns whose cards tell texts and their labels.

    Of the fit rows, and of the gate rows apart.

    Args:
        data: One for each column of the bus, in its order.
        bus: The experts; its router is not asked.
        cards: The experts' cards by id.
        encode: Texts → h ``(N, D)``.
        unfold: The rows that `encode` gives of labelled texts.
    """
    return [_with(d, bus, cards.get(d.column), encode, unfold) for d in data]


def _with(
    data: ColumnData, bus: Bus, card: Card | None, encode: Encode, unfold: Unfold
) -> ColumnData:
    told = card is not None and card.kind == "texts" and not isinstance(bus.task, Regression)
    if card is None or not told:
        return data
    fit = _judged(bus, _part(card, "fit"), encode, unfold)
    gate = _part(card, "gate")
    return dataclasses.replace(
        data,
        likelihood=fit.likelihood,
        sketch=fit.sketch,
        gate=_judged(bus, gate, encode, unfold) if gate else None,
    )


def _part(card: Card, part: str) -> list[Row]:
    return [Row(text=r.text, label=r.label) for r in card.rows if r.part == part]


def _judged(bus: Bus, rows: Sequence[Row], encode: Encode, unfold: Unfold) -> Judged:
    """Return z ``(N, D)`` and p_k of each row's label ``(N, K)``, sketched for who wants that."""
    h, answers = encode([r.text for r in rows]), [r.label for r in unfold(rows)]
    target = bus.task.targets(answers, bus.labels)
    with torch.no_grad():
        z = bus.norm(h)
        cuts = list(pieces(len(h), cost=len(bus.columns) * bus.answers))
        if getattr(bus.router, "sketches", False) and bus.classifier is not None and not bus.own:
            sketches = together([sketch(bus, h[cut], z[cut], target[cut]) for cut in cuts])
            return Judged(bus.layout.hear(z), sketches.alone().exp(), sketches)
        chosen = [_likelihood(bus, h[cut], z[cut], target[cut]) for cut in cuts]
    return Judged(bus.layout.hear(z), torch.cat(chosen))


def _likelihood(bus: Bus, h: Tensor, z: Tensor, target: Tensor) -> Tensor:
    """Return p_k of one answer a row, ``(B, K)``."""
    p = bus.each(h, z)  # (B, K, L)
    return p.gather(2, target[:, None, None].expand(-1, p.shape[1], 1)).squeeze(2)
