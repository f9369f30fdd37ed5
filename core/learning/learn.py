"""What a router learns from: the experts' fit rows and the background, with the experts' voices.

Texts are encoded together, and only those voices are computed that the router reads: with a
thousand experts that is the difference between seconds and an hour.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from ..encode import Encode
from ..ensemble import Ensemble
from ..evidence import outputs
from ..experts import Expert
from ..layout import ROUTER, Layout
from ..pieces import pieces
from ..routers.base import ColumnData
from ..rows import BackgroundRow
from ..said import active
from .cards import Card, background_data, column_data

__all__ = ["column_names", "learn_columns"]


def column_names(
    ids: Collection[str], background: Sequence[BackgroundRow], *, backbone_column: str | None
) -> tuple[str, ...]:
    """Return the columns of a composition: its experts, and the backbone where it can be learnt.

    Args:
        ids: The experts' ids.
        background: The backbone's background card.
        backbone_column: The backbone column's name; None for none.
    """
    if backbone_column is None or not _elsewhere(background, ids):
        return tuple(sorted(ids))
    return (*sorted(ids), backbone_column)


def learn_columns(
    cards: Mapping[str, Card],
    experts: Mapping[str, Expert],
    background: Sequence[BackgroundRow],
    *,
    backbone_column: str | None,
    norm: nn.Module,
    layout: Layout | None = None,
    classifier: Tensor | None,
    encode: Encode,
    seed: int,
    router: nn.Module | None = None,
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
        router: Who is to learn: only what it reads is computed. None: everything.
    """
    ids, layout = sorted(experts), layout or Layout(width=0)
    texts = [r.text for i in ids for r in cards[i].rows if r.part == "fit"]
    if backbone_column is not None:
        texts += _elsewhere(background, ids)
    if any(ROUTER in c.readers for c in layout.chunks):
        encode_z: Encode = partial(_unfolded, encode=encode, norm=norm)
    else:
        encode_z = _at_once(texts, encode=encode, norm=norm)
    data = [column_data(cards[i], encode_z=encode_z, seed=seed) for i in ids]
    if backbone_column is not None:
        others = background_data(
            background, column=backbone_column, composed=ids, encode_z=encode_z
        )
        data += [] if others is None else [others]
    crowd = Ensemble(experts, classifier=classifier, layout=layout, kernel="grouped")
    with torch.no_grad():  # a router may be trained on what comes out: no inference tensors
        return _heard(data, crowd, router)


def _elsewhere(background: Sequence[BackgroundRow], ids: Collection[str]) -> list[str]:
    """Return the background texts in nobody's domain."""
    composed = frozenset(ids)
    return [r.text for r in background if r.domain is None or r.domain not in composed]


def _at_once(
    texts: Sequence[str], *, encode: Encode, norm: nn.Module
) -> Callable[[Sequence[str]], Tensor]:
    """Return texts → z ``(N, D)`` of texts that were all encoded in one go."""
    distinct = list(dict.fromkeys(texts))
    place = {text: n for n, text in enumerate(distinct)}
    z = norm(encode(distinct)) if distinct else torch.empty(0)

    def look_up(asked: Sequence[str]) -> Tensor:
        return z[[place[t] for t in asked]]

    return look_up


def _unfolded(texts: Sequence[str], *, encode: Encode, norm: nn.Module) -> Tensor:
    """Return z̃ of every token of texts: remembered as they are, there is no row for a text."""
    z: Tensor = norm(encode(texts))
    return z


def _heard(
    data: Sequence[ColumnData], crowd: Ensemble, router: nn.Module | None
) -> list[ColumnData]:
    """Add what the router reads of the experts, and leave the columns z of the bus's width."""
    layout, columns = crowd.layout, len(data)
    wide = [layout.widen(d.z) for d in data]
    looks: list[Tensor | None] = [None] * columns
    voices: list[Tensor | None] = [None] * columns
    if _reads(router, "reads_outputs"):
        looks = _by_column(partial(_outputs, crowd, columns), wide, crowd)
        voices = [None if x is None else x[..., 0] for x in looks]
    elif _reads(router, "reads_evidence"):
        voices = _by_column(partial(_evidence, crowd, columns), wide, crowd)
    asks = _reads(router, "asks")
    heard = layout.hear(wide[0]).shape[-1] if wide else 0
    return [
        dataclasses.replace(
            d,
            z=layout.hear(d.z),
            statistics=d.statistics.narrow(heard) if layout.whole > heard else d.statistics,
            evidence=voices[n],
            outputs=looks[n],
            hear=partial(_hear, crowd, wide[n], columns) if asks else None,
        )
        for n, d in enumerate(data)
    ]


def _reads(router: nn.Module | None, what: str) -> bool:
    return router is None or bool(getattr(router, what, False))


def _by_column(
    compute: Callable[[Tensor], Tensor], wide: Sequence[Tensor], crowd: Ensemble
) -> list[Tensor | None]:
    """Compute something of all rows, piece by piece, and hand each column its own."""
    z = torch.cat(list(wide))
    cost = max(1, len(crowd.ids)) * z.shape[1]
    told = torch.cat([compute(z[piece]) for piece in pieces(len(z), cost=cost)])
    return list(torch.split(told, [len(w) for w in wide]))


def _outputs(crowd: Ensemble, columns: int, z: Tensor) -> Tensor:
    read = [crowd.layout.read(z, i) for i in crowd.ids]
    return outputs(crowd.parts, read, classifier=crowd.classifier, columns=columns)


def _evidence(crowd: Ensemble, columns: int, z: Tensor) -> Tensor:
    return crowd.voices(crowd.all(z), z, columns=columns)


def _hear(crowd: Ensemble, z: Tensor, columns: int, mask: Tensor) -> Tensor:
    """Return the evidence ``(N, K)`` of those a mask asks about the rows z ``(N, …)``."""
    with torch.no_grad():
        return crowd.voices(crowd.speak(z, active(mask)), z, columns=columns)
