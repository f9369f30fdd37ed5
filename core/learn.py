"""What a router learns from: the experts' fit rows and the background, with the experts' voices."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from .cards import Card, background_data, column_data
from .ensemble import Ensemble
from .evidence import outputs
from .experts import Expert
from .layout import Layout
from .routers.base import ColumnData
from .rows import BackgroundRow
from .said import active

__all__ = ["learn_columns"]


def learn_columns(
    cards: Mapping[str, Card],
    experts: Mapping[str, Expert],
    background: Sequence[BackgroundRow],
    *,
    backbone_column: str | None,
    norm: nn.Module,
    layout: Layout | None = None,
    classifier: Tensor | None,
    encode: Callable[[Sequence[str]], Tensor],
    seed: int,
) -> list[ColumnData]:
    """Return the data of every column, in column order.

    Args:
        cards: The experts' cards by id.
        experts: The experts by id.
        background: The backbone's background card; without rows there is no backbone column.
        backbone_column: The backbone column's name; None for none.
        norm: h → z, or h̃ → z̃.
        layout: What experts read beside h.
        classifier: W_c ``(C, D)``.
        encode: Texts → h ``(N, D)``.
        seed: Where rows drawn from statistics come from.
    """

    def encode_z(texts: Sequence[str]) -> Tensor:
        z: Tensor = norm(encode(texts))
        return z

    ids, layout = sorted(experts), layout or Layout(width=0)
    data = [column_data(cards[i], encode_z=encode_z, seed=seed) for i in ids]
    if backbone_column is not None:
        others = background_data(
            background, column=backbone_column, composed=ids, encode_z=encode_z
        )
        data += [] if others is None else [others]
    parts, heard = [experts[i] for i in ids], []
    crowd = Ensemble(experts, classifier=classifier, layout=layout, kernel="grouped")
    with torch.no_grad():  # a router may be trained on what comes out: no inference tensors
        for d in data:
            wide = layout.widen(d.z)
            read = [layout.read(wide, i) for i in ids]
            looks = outputs(parts, read, classifier=classifier, columns=len(data))
            heard.append(
                dataclasses.replace(
                    d,
                    z=layout.narrow(d.z),
                    statistics=d.statistics.narrow(layout.width) if layout.chunks else d.statistics,
                    evidence=looks[..., 0],
                    outputs=looks,
                    hear=partial(_hear, crowd, wide, len(data)),
                )
            )
    return heard


def _hear(crowd: Ensemble, z: Tensor, columns: int, mask: Tensor) -> Tensor:
    """Return the evidence ``(N, K)`` of those a mask asks about the rows z ``(N, …)``."""
    with torch.no_grad():
        return crowd.voices(crowd.speak(z, active(mask)), z, columns=columns)
