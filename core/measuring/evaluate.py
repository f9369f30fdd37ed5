"""Evaluate a composition beside everything that needs no extra training.

Every row of the table answers "what if the router were simpler?": the backbone alone, the best
single expert, the plain sum, uniform weights, nearest centroid, the statistics router, the
trained router made hard, the mixture over the same experts, and the oracle.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

import msgspec
import torch
from torch import Tensor, nn

from ..answering.composed import Composed, by_domain
from ..bus import BACKBONE, Bus
from ..encode import Encode
from ..generate.bits import bits_per_byte
from ..generate.spelling import byte_counts
from ..learning.learn import learn_columns
from ..pieces import pieces
from ..receipt import Health
from ..routers import CentroidRouter, ColumnData, Router, StatisticsRouter
from ..rows import Row
from ..tasks import Regression
from .judge import Told, read_off, together
from .routing_health import routing_health

__all__ = ["Evaluation", "columns_data", "evaluate", "hard", "hits_by_system"]


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """Accuracies, 0–1.

    Attributes:
        overall: Of the composition over all rows.
        macro: The mean over domains.
        worst: The worst domain's.
        domains: By domain.
        oracle: Overall, with each row's own expert at weight 1.
        baselines: Overall, by system.
        table: By system and domain.
        routed: How often the heaviest column is the row's own expert, by domain.
        rows: How many rows.
        counts: Rows by domain.
        generation: What was evaluated.
        mae: Where numbers are answered: mean |ŷ − y| of the composition, by domain and
            ``overall``; accuracies are then exact matches after rounding.
        bits: Where text is generated: bits per byte by system and domain; rows are then tokens,
            and accuracies those of the next one.
        routing: What the routes look like.
        leave_one_out: By expert left out: accuracy by domain after retraining the router.
    """

    overall: float
    macro: float
    worst: float
    domains: dict[str, float]
    oracle: float
    baselines: dict[str, float]
    table: dict[str, dict[str, float]]
    routed: dict[str, float]
    rows: int
    counts: dict[str, int]
    generation: int | None
    mae: dict[str, float] | None = None
    bits: dict[str, dict[str, float]] | None = None
    routing: Health | None = None
    leave_one_out: dict[str, dict[str, float]] | None = None

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{escape(d)}</th>" for d in self.counts)
        body = "".join(
            f"<tr><td>{name}</td>"
            + "".join(f"<td>{row.get(d, float('nan')):.3f}</td>" for d in self.counts)
            + f"<td>{self._overall(name):.3f}</td></tr>"
            for name, row in self.table.items()
        )
        return f"<table><tr><th></th>{head}<th>overall</th></tr>{body}</table>"

    def _overall(self, name: str) -> float:
        return {**self.baselines, "routed": self.overall, "oracle": self.oracle}[name]


def evaluate(composed: Composed, rows: Sequence[Row], *, encode: Encode) -> Evaluation:
    """Evaluate a composition on labelled rows; where text is generated, on each of their tokens.

    Args:
        composed: The composition.
        rows: Labelled texts; `domain` says whose slice a row lies in.
        encode: Texts → h ``(N, D)``, usually through the feature cache.
    """
    h, told = encode([r.text for r in rows]), composed.backbone.unfold(rows)
    systems = _read_systems(composed, told, h, encode)
    domains = by_domain(systems["routed"].hits, told)
    overall = {name: float(system.hits.mean()) for name, system in systems.items()}
    return Evaluation(
        overall=overall["routed"],
        macro=sum(domains.values()) / len(domains) if domains else overall["routed"],
        worst=min(domains.values(), default=overall["routed"]),
        domains=domains,
        oracle=overall["oracle"],
        baselines={n: a for n, a in overall.items() if n not in {"routed", "oracle"}},
        table={name: by_domain(system.hits, told) for name, system in systems.items()},
        routed=_routed(composed, told, h),
        rows=len(told),
        counts={d: sum(r.domain == d for r in told) for d in domains},
        generation=composed.generation,
        mae=_mae(composed, told, h),
        bits=_bits(composed, rows, told, systems),
        routing=routing_health(composed, h, told),
    )


def hits_by_system(composed: Composed, rows: Sequence[Row], *, encode: Encode) -> dict[str, Tensor]:
    """Return, by system, whether each row is answered rightly: ``(N,)`` of 0.0 and 1.0."""
    h, told = encode([r.text for r in rows]), composed.backbone.unfold(rows)
    return {n: system.hits for n, system in _read_systems(composed, told, h, encode).items()}


def columns_data(
    composed: Composed, *, encode: Encode, router: nn.Module | None = None
) -> list[ColumnData]:
    """Return what a router may learn of each column of a composition, from its cards.

    Args:
        composed: The composition.
        encode: Texts → h.
        router: Who is to learn: only what it reads is computed. None: everything.
    """
    bus = composed.bus
    return learn_columns(
        composed.cards,
        dict(zip(bus.ids, bus.parts(), strict=True)),
        composed.background,
        backbone_column=BACKBONE if BACKBONE in bus.columns else None,
        norm=bus.norm,
        layout=bus.layout,
        classifier=composed.backbone.classifier,
        encode=encode,
        seed=composed.seed,
        router=router,
    )


def hard(alpha: Tensor) -> Tensor:
    """Return one-hot weights: the heaviest column at unit scale, ``(B, K)``."""
    return torch.nn.functional.one_hot(alpha.argmax(-1), alpha.shape[-1]).to(alpha.dtype)


def _read_systems(
    composed: Composed, rows: Sequence[Row], h: Tensor, encode: Encode
) -> dict[str, Told]:
    """Return what every system makes of the rows, some rows at a time."""
    bus, read = composed.bus, dict[str, list[Told]]()
    systems = _systems(composed, columns_data(composed, encode=encode))
    with torch.inference_mode():
        for piece in pieces(len(rows), cost=len(bus.columns) * bus.answers):
            some = _Rows(h[piece], bus.norm(h[piece]), rows[piece])
            for name, answer in systems.items():
                read.setdefault(name, []).append(read_off(composed, answer(some), some.rows))
    told = {name: together(parts) for name, parts in read.items()}
    alone = [told.pop(_alone(k)) for k in range(len(bus.ids))]
    best = max(alone, key=lambda t: float(t.hits.mean()))
    order = ("backbone", "best_single", *told)
    return {n: best if n == "best_single" else told[n] for n in dict.fromkeys(order)}


@dataclass(frozen=True)
class _Rows:
    """Some rows: h ``(N, D)``, z ``(N, D)`` and the rows themselves."""

    h: Tensor
    z: Tensor
    rows: Sequence[Row]


System = Callable[[_Rows], Tensor]
"""Rows → p(y|x) ``(N, L)``."""


def _systems(composed: Composed, data: Sequence[ColumnData]) -> dict[str, System]:
    """Return every system, by name; the single experts under names of their own."""
    bus = composed.bus
    experts = torch.tensor([float(c != BACKBONE) for c in bus.columns])
    systems = {"backbone": _fixed(bus, torch.zeros_like(experts))}
    systems |= {_alone(k): _single(bus, k) for k in range(len(bus.ids))}
    systems["uniform"] = _fixed(bus, experts / experts.sum())
    if not bus.own:  # weights that sum to E are no mixture
        systems["sum"] = _fixed(bus, experts)
    for kind in (CentroidRouter, StatisticsRouter):
        systems[kind.kind] = _under(bus, _solved(kind, composed, data))
    systems["hard"] = lambda x: bus.probabilities(x.h, x.z, hard(bus.weights(x.z)))
    systems["mixture"] = lambda x: bus.mixture(x.h, x.z, bus.weights(x.z))
    systems["routed"] = lambda x: bus.answer(x.h, x.z, bus.weights(x.z))
    systems["oracle"] = lambda x: bus.probabilities(x.h, x.z, composed.oracle_weights(x.rows))
    return systems


def _alone(column: int) -> str:
    return f"alone {column}"


def _single(bus: Bus, column: int) -> System:
    return lambda x: bus.alone(x.h, x.z, column)


def _fixed(bus: Bus, weights: Tensor) -> System:
    return lambda x: bus.probabilities(x.h, x.z, weights.expand(len(x.h), -1).contiguous())


def _under(bus: Bus, router: Router) -> System:
    return lambda x: bus.probabilities(x.h, x.z, torch.softmax(router(bus.layout.hear(x.z)), -1))


def _solved(kind: type[Router], composed: Composed, data: Sequence[ColumnData]) -> Router:
    router = kind(width=composed.backbone.bus_config().heard, columns=composed.bus.columns)
    router.solve(data)
    return router


def _mae(composed: Composed, rows: Sequence[Row], h: Tensor) -> dict[str, float] | None:
    """Return the mean absolute error, overall and by domain; None where labels are answered."""
    task = composed.bus.task
    if not isinstance(task, Regression):
        return None
    with torch.inference_mode():
        error = task.error(composed.bus(h)[0], rows)
    return {"overall": float(error.mean()), **by_domain(error, rows)}


def _bits(
    composed: Composed, rows: Sequence[Row], told: Sequence[Row], systems: Mapping[str, Told]
) -> dict[str, dict[str, float]] | None:
    """Return bits per byte by system, overall and by domain; None where no text is generated."""
    if not composed.backbone.generates:
        return None
    counts = {"overall": 0, **dict.fromkeys((r.domain for r in rows if r.domain is not None), 0)}
    lengths = byte_counts(composed.backbone.trunk, [r.text for r in rows])
    for row, length in zip(rows, lengths, strict=True):
        counts["overall"] += length
        if row.domain is not None:
            counts[row.domain] += length
    overall = [Row(text="", label="", domain="overall")] * len(told)
    return {
        name: {
            **bits_per_byte(system.nats, overall, counts),
            **bits_per_byte(system.nats, told, counts),
        }
        for name, system in systems.items()
        if system.nats is not None
    }


def _routed(composed: Composed, rows: Sequence[Row], h: Tensor) -> dict[str, float]:
    """Return how often the heaviest column is the row's own expert, by domain."""
    with torch.inference_mode():
        heaviest = composed.bus.weights(composed.bus.norm(h)).argmax(-1)
    own = torch.tensor(
        [
            float(composed.bus.columns[int(k)] == r.domain)
            for k, r in zip(heaviest, rows, strict=True)
        ]
    )
    return by_domain(own, rows)
