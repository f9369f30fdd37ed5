"""The training data of a router: fit rows of the experts, the background, and router signals.

Texts are encoded together, and only the signals that the router reads are computed. With a thousand
experts this is the difference between seconds and an hour.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from ..batching import batched_slices
from ..bus.bus import BACKBONE, Bus
from ..bus.ensemble import Ensemble
from ..bus.signals import ANSWERS, SIGNALS, RouterSignals
from ..model.composed import ComposedModel
from ..routers.base import AnswerLikelihoods, ColumnData, Router
from ..routers.cards import background_data, background_texts, column_data
from ..types import BackgroundRow, Encode, Row


def column_names(
    ids: Collection[str], background: Sequence[BackgroundRow], *, backbone_column: str | None
) -> tuple[str, ...]:
    """Return the columns of a composition: its experts, and `backbone` if it can be learnt.

    Args:
        ids: The experts' ids.
        background: The backbone's background card.
        backbone_column: The backbone column's name; None for none.
    """
    if backbone_column is None or not background_texts(background, ids):
        return tuple(sorted(ids))
    return (*sorted(ids), backbone_column)


def columns_data(
    composed: ComposedModel, *, encode: Encode, reads: Collection[str] = ()
) -> list[ColumnData]:
    """Return the router's training data for each column of a composition, from its cards.

    Args:
        composed: The composition; its own router may be untrained.
        encode: Texts → h ``(N, D)``.
        reads: The inputs that the router to be trained has in addition to z (`Router.reads`), such
            as the experts' answers.
    """
    bus, cards, background = composed.bus, composed.cards, composed.background
    texts = [r.text for i in bus.ids for r in cards[i].rows if r.part == "fit"]
    if BACKBONE in bus.columns:
        texts += background_texts(background, bus.ids)
    encode_z = _encode_z(composed, texts, encode)
    layout = bus.layout
    data = [
        column_data(cards[i], encode_z=encode_z, seed=composed.seed, layout=layout) for i in bus.ids
    ]
    if BACKBONE in bus.columns:
        others = background_data(
            background, column=BACKBONE, composed=bus.ids, encode_z=encode_z, layout=layout
        )
        data += [] if others is None else [others]
    ensemble = Ensemble(
        dict(zip(bus.ids, bus.ensemble.parts, strict=True)),
        classifier=composed.backbone.classifier,
        layout=bus.layout,
        strategy="grouped",
        columns=len(data),
    )
    data = _with_signals(data, ensemble, frozenset(reads))
    return _with_likelihood(data, composed, encode=encode) if ANSWERS in reads else data


def _encode_z(composed: ComposedModel, texts: Sequence[str], encode: Encode) -> Encode:
    """Return a function from texts to z̃ of the rows that a router is trained on."""
    norm, trunk, unit = composed.bus.norm, composed.backbone.trunk, composed.backbone.task.unit
    if not unit.whole:
        return lambda chosen: norm(unit.router_rows(trunk, chosen, encode(chosen)))
    distinct = list(dict.fromkeys(texts))  # all in one call
    place = {text: n for n, text in enumerate(distinct)}
    z = norm(encode(distinct)) if distinct else torch.empty(0)
    return lambda chosen: z[[place[t] for t in chosen]]


def _with_signals(
    data: Sequence[ColumnData], ensemble: Ensemble, reads: frozenset[str]
) -> list[ColumnData]:
    """Add the signals that the router reads, and restrict z̃ to the router's input."""
    features = [ensemble.layout.pad(d.z) for d in data]  # (N_k, …) each
    values: dict[str, Sequence[Tensor]] = {}
    if names := sorted(reads & SIGNALS.keys()):
        z = torch.cat(features)
        cost = max(1, len(ensemble.ids)) * z.shape[1]
        batches = [z[rows] for rows in batched_slices(len(z), cost=cost)]
        # Batch by batch, because the signals of a batch keep all outputs of the experts for it.
        tables = [
            {n: signals[n] for n in names}
            for signals in (RouterSignals(b, ensemble=ensemble, reads=reads) for b in batches)
        ]
        lengths = [len(f) for f in features]
        values = {n: torch.split(torch.cat([t[n] for t in tables]), lengths) for n in names}
    prepared = []
    for k, d in enumerate(data):
        mine = {n: parts[k] for n, parts in values.items()}
        signals = RouterSignals(features[k], ensemble=ensemble, reads=reads, values=mine)
        prepared.append(dataclasses.replace(d, z=signals.z, signals=signals))
    return prepared


def _with_likelihood(
    data: Sequence[ColumnData], composed: ComposedModel, *, encode: Encode
) -> list[ColumnData]:
    """Add p_k(y|x) ``(N, K)`` to columns whose cards have labelled texts.

    It is computed for the fit rows and, separately, for the gate rows.
    """
    bus, unit_rows = composed.bus, composed.backbone.unit_rows
    extended = list(data)
    for k, d in enumerate(data):
        card = composed.cards.get(d.column)
        if card is None or card.kind != "texts" or bus.task.head.places((), bus.labels) is None:
            continue
        fit, gate = (
            [Row(text=r.text, label=r.label) for r in card.rows if r.part == part]
            for part in ("fit", "gate")
        )
        likelihoods = _likelihoods(bus, fit, encode, unit_rows(fit))
        extended[k] = dataclasses.replace(
            d,
            likelihood=likelihoods.likelihood,
            truncated=likelihoods.truncated,
            gate=_likelihoods(bus, gate, encode, unit_rows(gate)) if gate else None,
        )
    return extended


def _likelihoods(
    bus: Bus, texts: Sequence[Row], encode: Encode, rows: Sequence[Row]
) -> AnswerLikelihoods:
    """Return z ``(N, D)`` and p_k ``(N, K)`` of each row's label; outputs if the router asks."""
    h = encode([r.text for r in texts])
    target = bus.task.head.targets([r.label for r in rows], bus.labels)  # (N,)
    with torch.no_grad():
        z = bus.norm(h)
        inputs = bus.layout.router_input(z)
        router = bus.router
        truncated = router.truncate(bus, h, z, target) if isinstance(router, Router) else None
        if truncated is not None:
            return AnswerLikelihoods(inputs, truncated.alone().exp(), truncated)
        cuts = batched_slices(len(h), cost=len(bus.columns) * bus.answers)
        places = target[:, None, None].expand(-1, len(bus.columns), 1)  # (N, K, 1)
        # In batches: the answers of all columns to all rows at once would be (N, K, L) numbers.
        chosen = [bus.each(h[c], z[c]).gather(2, places[c]).squeeze(2) for c in cuts]
    return AnswerLikelihoods(inputs, torch.cat(chosen))
