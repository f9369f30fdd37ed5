"""Evaluate a composition together with all baselines that need no further training.

Each row of the table is a simpler way to combine the experts: the backbone alone, the best single
expert, the plain sum, uniform weights, nearest centroid, the statistics router, the trained router
with hard weights, the mixture over the same experts, and oracle routing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from html import escape

import msgspec
import torch
from torch import Tensor

from ..batching import batched_slices
from ..bus.bus import BACKBONE
from ..label_scores import LabelMetrics, LabelScore
from ..label_sets import NONE
from ..model.composed import ComposedModel, by_domain
from ..receipt import Health
from ..routers.base import ColumnData, Router
from ..routers.centroid import CentroidRouter
from ..routers.statistics import StatisticsRouter
from ..training.router_data import columns_data
from ..types import Encode, Row
from .judge import Scores, bits_per_byte, concat_scores, judge, score
from .reliability import Reliability, reliability
from .routing_health import routing_health


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """Accuracies, 0–1, and other metrics.

    Attributes:
        overall: Accuracy of the composition over all rows.
        macro: Mean accuracy over domains.
        worst: Accuracy of the worst domain.
        domains: Accuracy by domain.
        oracle: Overall accuracy with each row's own expert at weight 1 (oracle routing); None if no
            row's domain is the id of a composed expert.
        baselines: Overall accuracy by system.
        table: Accuracy by system and domain.
        routed: Share of rows whose own expert has the largest weight, by domain.
        rows: Number of rows.
        counts: Number of rows by domain.
        generation: The generation that was evaluated.
        mae: For numbers: mean |ŷ − y| of the composition, by domain and ``overall``; accuracies
            are then exact matches after rounding.
        bits: For text generation: bits per byte by system and domain; rows are then tokens, and
            accuracies those of the next token.
        labels: For labels: precision, recall and F1 by label.
        macro_f1: The mean F1 of the labels that occur in rows.
        micro_f1: For label sets: the F1 over all rows and labels together; accuracies are then
            those of whole sets.
        spans: Whether F1 is that of spans, where a hit has the right label and both of its ends;
            rows are then words, and accuracies those of a word's whole label set.
        confusion: Number of rows by label and answer.
        routing: Routing health.
        declined: If a share to decline was set: the share that is declined, by domain and
            ``overall``. Accuracies cover all rows, as if none were declined.
        reliability: For mutually exclusive labels: the calibration of the answers' probabilities,
            over declined texts as well.
        leave_one_out: By expert left out, the accuracy by domain after retraining the router.
    """

    overall: float
    macro: float
    worst: float
    domains: dict[str, float]
    oracle: float | None
    baselines: dict[str, float]
    table: dict[str, dict[str, float]]
    routed: dict[str, float]
    rows: int
    counts: dict[str, int]
    generation: int | None
    mae: dict[str, float] | None = None
    bits: dict[str, dict[str, float]] | None = None
    labels: dict[str, LabelScore] | None = None
    macro_f1: float | None = None
    micro_f1: float | None = None
    spans: bool = False
    confusion: dict[str, dict[str, int]] | None = None
    routing: Health | None = None
    declined: dict[str, float] | None = None
    reliability: Reliability | None = None
    leave_one_out: dict[str, dict[str, float]] | None = None

    def _repr_html_(self) -> str:
        overall = {**self.baselines, "routed": self.overall, "oracle": self.oracle}
        head = "".join(f"<th>{escape(d)}</th>" for d in self.counts)
        body = "".join(
            f"<tr><td>{name}</td>"
            + "".join(f"<td>{row.get(d, float('nan')):.3f}</td>" for d in self.counts)
            + f"<td>{'n/a' if overall[name] is None else f'{overall[name]:.3f}'}</td></tr>"
            for name, row in self.table.items()
        )
        return f"<table><tr><th></th>{head}<th>overall</th></tr>{body}</table>"


def evaluate(composed: ComposedModel, rows: Sequence[Row], *, encode: Encode) -> Evaluation:
    """Evaluate a composition on labelled rows; for text generation, on each of their tokens.

    Args:
        composed: The composition.
        rows: Labelled texts; `domain` is the id of the expert whose domain a text belongs to.
        encode: Texts → h ``(N, D)``, usually through the feature cache.
    """
    h, units = encode([r.text for r in rows]), composed.backbone.unit_rows(rows)
    systems, result = _score_systems(composed, units, h, encode), judge(composed, h, units)
    domains = by_domain(systems["routed"].hits, units)
    overall = {name: float(system.hits.mean()) for name, system in systems.items()}
    heaviest = [composed.bus.columns[k] for k in result.heaviest.tolist()]
    at_home = torch.tensor([c == r.domain for c, r in zip(heaviest, units, strict=True)])
    table = {name: by_domain(system.hits, units) for name, system in systems.items()}
    owned = bool((composed.owners(units) >= 0).any())
    scores, error = _label_scores(composed, rows, h), systems["routed"].error
    confusion = None if scores is None else scores.confusion
    shown = {n: s for n, s in systems.items() if owned or n != "oracle"}
    return Evaluation(
        overall=overall["routed"],
        macro=sum(domains.values()) / len(domains) if domains else overall["routed"],
        worst=min(domains.values(), default=overall["routed"]),
        domains=domains,
        oracle=overall["oracle"] if owned else None,
        baselines={n: a for n, a in overall.items() if n not in {"routed", "oracle"}},
        table=table if owned else {**table, "oracle": {}},
        routed=by_domain(at_home, units),
        rows=len(units),
        counts={d: sum(r.domain == d for r in units) for d in domains},
        generation=composed.generation,
        mae=None if error is None else {"overall": float(error.mean()), **by_domain(error, units)},
        bits=_bits(composed, rows, units, shown),
        labels=None if scores is None else scores.labels,
        macro_f1=None if scores is None else scores.macro_f1,
        micro_f1=None if scores is None else scores.micro_f1,
        spans="spans" in composed.bus.task.head.fields,
        confusion=confusion,
        routing=routing_health(composed, h, units, result=result),
        reliability=None if confusion is None else reliability(result.confidence, result.hits),
        declined=None
        if composed.decline_thresholds is None
        else {
            "overall": float(result.declined.double().mean()),
            **by_domain(result.declined, units),
        },
    )


def _label_scores(composed: ComposedModel, rows: Sequence[Row], h: Tensor) -> LabelMetrics | None:
    """Return the scores of each text's answer; None if answers are not labels.

    Args:
        composed: The composition.
        rows: The texts.
        h: Their features, or those of all their words, ``(N, D)``.
    """
    bus, head = composed.bus, composed.bus.task.head
    if head.scorer is None or not rows:
        return None
    with torch.inference_mode():
        cuts = batched_slices(len(h), cost=len(bus.columns) * bus.answers)
        p = torch.cat([bus(h[cut])[0] for cut in cuts])
        texts = bus.task.unit.answers(composed.backbone.trunk, [r.text for r in rows])
        labels = bus.labels
        if NONE in labels:  # a label of this name is not the answer to a declined text
            labels = tuple(y or "(declined)" for y in labels)
        answers = [a.label for a in texts.predictions(head, p, labels)]
    return head.scorer(list(zip((r.label for r in rows), answers, strict=True)))


def hits_by_system(
    composed: ComposedModel, rows: Sequence[Row], *, encode: Encode
) -> dict[str, Tensor]:
    """Return, by system, whether each row is answered correctly: ``(N,)`` of 0.0 and 1.0."""
    h, units = encode([r.text for r in rows]), composed.backbone.unit_rows(rows)
    return {n: system.hits for n, system in _score_systems(composed, units, h, encode).items()}


def hard(alpha: Tensor) -> Tensor:
    """Return one-hot weights ``(B, K)``: weight 1 for the column with the largest weight."""
    return torch.nn.functional.one_hot(alpha.argmax(-1), alpha.shape[-1]).to(alpha.dtype)


System = Callable[[Tensor, Tensor, Sequence[Row]], Tensor]
"""h, z ``(N, D)`` and their rows → p(y|x) ``(N, L)``."""


def _score_systems(
    composed: ComposedModel, rows: Sequence[Row], h: Tensor, encode: Encode
) -> dict[str, Scores]:
    """Return the scores of every system on the rows, in batches."""
    bus, parts = composed.bus, dict[str, list[Scores]]()
    systems = _systems(composed, columns_data(composed, encode=encode))
    with torch.inference_mode():
        for piece in batched_slices(len(rows), cost=len(bus.columns) * bus.answers):
            batch_h, batch = h[piece], rows[piece]
            z = bus.norm(batch_h)
            for name, answer in systems.items():
                parts.setdefault(name, []).append(score(composed, answer(batch_h, z, batch), batch))
    scores = {name: concat_scores(p) for name, p in parts.items()}
    alone = [scores.pop(i) for i in [*scores] if i.startswith(ALONE)]
    backbone = scores.pop("backbone")
    best = max(alone, key=lambda s: float(s.hits.mean()))
    return {"backbone": backbone, "best_single": best, **scores}


ALONE = "alone "
"""Prefix of the names of single experts among the systems."""


def _systems(composed: ComposedModel, data: Sequence[ColumnData]) -> dict[str, System]:
    """Return all systems by name; names of single experts begin with `ALONE`."""
    bus, width = composed.bus, composed.backbone.bus_config().router_width
    experts = torch.tensor([float(c != BACKBONE) for c in bus.columns])

    def fixed(weights: Tensor) -> System:
        return lambda h, z, _: bus.probabilities(h, z, weights.expand(len(h), -1).contiguous())

    def alone(column: int) -> System:
        return lambda h, z, _: bus.alone(h, z, column)

    def routed_by(kind: type[Router]) -> System:
        router = kind(width=width, columns=bus.columns)
        router.solve(data)
        return lambda h, z, _: bus.probabilities(h, z, router.weights(bus.layout.router_input(z)))

    return {
        "backbone": fixed(torch.zeros_like(experts)),
        **{f"{ALONE}{k}": alone(k) for k in range(len(bus.ids))},
        "uniform": fixed(experts / experts.sum()),
        # With labels of their own, experts form a mixture, in which weights cannot sum to E.
        **({} if bus.own else {"sum": fixed(experts)}),
        **{kind.kind: routed_by(kind) for kind in (CentroidRouter, StatisticsRouter)},
        "hard": lambda h, z, _: bus.probabilities(h, z, hard(bus.weights(z))),
        "mixture": lambda h, z, _: bus.mixture(h, z, bus.weights(z)),
        "routed": lambda h, z, _: bus.answer(h, z, bus.weights(z)),
        "oracle": lambda h, z, rows: bus.probabilities(h, z, composed.oracle_weights(rows)),
    }


def _bits(
    composed: ComposedModel,
    rows: Sequence[Row],
    tokens: Sequence[Row],
    systems: Mapping[str, Scores],
) -> dict[str, dict[str, float]] | None:
    """Return bits per byte by system, overall and by domain; None unless text is generated."""
    if systems["routed"].nats is None:
        return None
    backbone = composed.backbone
    lengths = backbone.task.unit.byte_counts(backbone.trunk, [r.text for r in rows])
    sizes = Counter({"overall": sum(lengths)})
    for row, length in zip(rows, lengths, strict=True):
        if row.domain is not None:
            sizes[row.domain] += length
    overall = [Row(text="", label="", domain="overall")] * len(tokens)
    return {
        name: {
            **bits_per_byte(system.nats, overall, sizes),
            **bits_per_byte(system.nats, tokens, sizes),
        }
        for name, system in systems.items()
        if system.nats is not None
    }
