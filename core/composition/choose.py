"""Choose the router's kind if none was given by name.

If packages have data for a kind of a plugin (`Expert.router`), and for no other, it is taken.
Otherwise the default is `evidence`, provided that one covariance per column is small enough to be
read for every answer, no expert is an adapter, and a row is a whole text. (`evidence` runs every
expert, and each adapter needs a pass of its own.) Failing that, the kinds that read the text alone
are compared by how many held-out rows they route to the right expert. If there are adapters, these
kinds give all weight to one column, so that a text needs at most one more pass. A third of the rows
of every card that shows rows is held out, and subtracted from its sums; each kind is solved on the
rest. Gate rows are not used, because they judge the resulting composition.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..bus.bus import BACKBONE
from ..bus.layout import ROUTER
from ..model.composed import ComposedModel
from ..routers import build_router
from ..routers.base import ColumnData, Router
from ..training.router_data import columns_data
from ..types import Encode

AUTO = "auto"
"""The router to ask for if the kind is to be chosen."""

USUAL = "evidence"
"""The kind that won on gate rows of arithmetic and of text, with last states only."""

TRIED = ("ridge", "statistics")
"""Compared otherwise. The first is taken unless a later one is significantly better."""

SURE = 2.0
"""Standard errors that the mean paired difference must exceed to be significant."""

LARGEST = 2**23
"""Most entries of all columns' covariances, 32 MiB: every answer reads all of them."""

HELD = 3
"""One row in this many is held out."""


@dataclass(frozen=True, kw_only=True)
class RouterChoice:
    """The chosen kind of router.

    Attributes:
        kind: The best of them.
        tried: The share of held-out rows that each kind routed to the right expert.
        data: Their common training data; None if no kinds were compared.
    """

    kind: str
    tried: Mapping[str, float] = field(default_factory=dict)
    data: Sequence[ColumnData] | None = None


def choose_router(model: ComposedModel, *, encode: Encode) -> RouterChoice:
    """Choose a kind for a composition.

    Args:
        model: Its parts, under any router.
        encode: Texts → h ``(N, D)``.
    """
    bus, config = model.bus, model.backbone.bus_config()
    adapters = any(s.own_pass for s in bus.layout.segments)
    if len(named := {e.router for e in bus.ensemble.parts if e.router}) == 1:
        return RouterChoice(kind=named.pop() + ":k=1" * adapters)
    # Experts read words, the router texts.
    by_word = any(s.instead and ROUTER in s.readers for s in bus.layout.segments)
    if len(bus.columns) * config.router_width**2 <= LARGEST and not (adapters or by_word):
        return RouterChoice(kind=USUAL)
    # Every adapter with a weight costs the text another pass: only one gets all of it.
    kinds = [f"{kind}:k=1" for kind in TRIED] if adapters else TRIED
    built = ((k, build_router(k, config, bus.columns, model.seed)) for k in kinds)
    routers = {k: router for k, router in built if router is not None}
    return compare_routers(routers, columns_data(model, encode=encode))


def compare_routers(routers: Mapping[str, Router], data: Sequence[ColumnData]) -> RouterChoice:
    """Choose among kinds by how many held-out rows they route to the right expert.

    Args:
        routers: By kind, the default first; they read z alone, and are solved on the other rows.
        data: Their training data, in column order.
    """
    parts, kinds = [_hold_back(d) for d in data], list(routers)
    held = [
        (k, back)
        for k, (_, back) in enumerate(parts)
        if back is not None and back.column != BACKBONE
    ]
    if len(held) < 2:  # noqa: PLR2004  (rows of one column cannot compare routers)
        return RouterChoice(kind=kinds[0], data=data)
    hits = dict[str, Tensor]()
    for kind, router in routers.items():
        router.solve([learnt for learnt, _ in parts])
        with torch.inference_mode():
            right = [router(d.z).argmax(1) == k for k, d in held]
        hits[kind] = torch.cat(right).double()
    tried = {kind: float(right_rows.mean()) for kind, right_rows in hits.items()}
    return RouterChoice(kind=_best(hits), tried=tried, data=data)


def _best(hits: Mapping[str, Tensor]) -> str:
    """Return the first kind, or a later one that is right on significantly more rows."""
    best, *others = hits
    for kind in others:
        better = hits[kind] - hits[best]
        if float(better.mean()) > SURE * float(better.std()) / len(better) ** 0.5:
            best = kind
    return best


def _hold_back(data: ColumnData) -> tuple[ColumnData, ColumnData | None]:
    """Split a column into the rows that stay and the held-out ones; one row of each label stays."""
    left = dict(zip(data.statistics.labels, data.statistics.counts.tolist(), strict=True))
    seen, held = Counter[str](), list[int]()
    for n, label in enumerate(data.labels):
        seen[label] += 1
        # By position within its label and not at random: the same cards give the same choice.
        if seen[label] % HELD == 0 and left[label] > 1:
            left[label] -= 1
            held.append(n)
    if not held:
        return data, None
    learnt = [n for n in range(len(data.labels)) if n not in set(held)]
    back = _rows(data, held)
    # Sums are additive: held-out rows leave them exactly, without the author's other rows.
    less = data.statistics.without(back.z, back.labels)
    return dataclasses.replace(_rows(data, learnt), statistics=less), back


def _rows(data: ColumnData, index: Sequence[int]) -> ColumnData:
    """Return some rows of a column, without signals: the kinds that are compared read none."""
    return dataclasses.replace(
        data, z=data.z[index], labels=tuple(data.labels[n] for n in index), signals=None
    )
