"""Evaluate a composition beside everything that needs no extra training.

Every row of the table answers "what if the router were simpler?": the backbone alone, the best
single expert, the plain sum, uniform weights, nearest centroid, the statistics router, the
trained router made hard, the mixture over the same experts, and the oracle.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import torch
from torch import Tensor, nn

from .bus import BACKBONE
from .composed import Composed, by_domain
from .learn import learn_columns
from .receipt import Health
from .routers import CentroidRouter, ColumnData, Router, StatisticsRouter
from .routing_health import routing_health
from .rows import Row
from .tasks import Regression

__all__ = ["Evaluation", "columns_data", "evaluate", "hard", "hits_by_system"]

Encode = Callable[[Sequence[str]], Tensor]


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
    routing: Health | None = None
    leave_one_out: dict[str, dict[str, float]] | None = None

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{d}</th>" for d in self.counts)
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
    """Evaluate a composition on labelled rows.

    Args:
        composed: The composition.
        rows: Labelled texts; `domain` says whose slice a row lies in.
        encode: Texts → h ``(N, D)``, usually through the feature cache.
    """
    hits = hits_by_system(composed, rows, encode=encode)
    domains = by_domain(hits["routed"], rows)
    overall = {name: float(values.mean()) for name, values in hits.items()}
    return Evaluation(
        overall=overall["routed"],
        macro=sum(domains.values()) / len(domains) if domains else overall["routed"],
        worst=min(domains.values(), default=overall["routed"]),
        domains=domains,
        oracle=overall["oracle"],
        baselines={n: a for n, a in overall.items() if n not in {"routed", "oracle"}},
        table={name: by_domain(values, rows) for name, values in hits.items()},
        routed=_routed(composed, rows, encode([r.text for r in rows])),
        rows=len(rows),
        counts={d: sum(r.domain == d for r in rows) for d in domains},
        generation=composed.generation,
        mae=_mae(composed, rows, encode([r.text for r in rows])),
        routing=routing_health(composed, encode([r.text for r in rows]), rows),
    )


def hits_by_system(composed: Composed, rows: Sequence[Row], *, encode: Encode) -> dict[str, Tensor]:
    """Return, by system, whether each row is answered rightly: ``(N,)`` of 0.0 and 1.0."""
    h = encode([r.text for r in rows])
    answers = _systems(composed, rows, h, encode)
    judge = composed.bus.task.right
    return {name: judge(p, rows, composed.bus.labels) for name, p in answers}


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


def _systems(
    composed: Composed, rows: Sequence[Row], h: Tensor, encode: Encode
) -> list[tuple[str, Tensor]]:
    """Return p(y|x) ``(N, L)`` of every system, by name."""
    bus = composed.bus
    with torch.inference_mode():
        z = bus.norm(h)
        alpha = bus.weights(z)

        def p(weights: Tensor) -> Tensor:
            return bus.probabilities(h, z, weights.expand(len(h), -1).contiguous())

        experts = torch.tensor([float(c != BACKBONE) for c in bus.columns])
        systems = [
            ("backbone", p(torch.zeros_like(experts))),
            ("best_single", _best_single(composed, rows, h, z)),
            ("uniform", p(experts / experts.sum())),
        ]
        if not bus.own:  # weights that sum to E are no mixture
            systems.append(("sum", p(experts)))
        data = columns_data(composed, encode=encode)
        systems += [
            (kind.kind, p(torch.softmax(_solved(kind, composed, data)(bus.layout.hear(z)), -1)))
            for kind in (CentroidRouter, StatisticsRouter)
        ]
        systems += [
            ("hard", p(hard(alpha))),
            ("mixture", bus.mixture(h, z, alpha)),
            ("routed", bus.answer(h, z, alpha)),
            ("oracle", p(composed.oracle_weights(rows))),
        ]
    return systems


def _solved(kind: type[Router], composed: Composed, data: Sequence[ColumnData]) -> Router:
    router = kind(width=composed.backbone.bus_config().heard, columns=composed.bus.columns)
    router.solve(data)
    return router


def _best_single(composed: Composed, rows: Sequence[Row], h: Tensor, z: Tensor) -> Tensor:
    """Return p of the single expert that is best on these very rows: a generous baseline."""
    judge = composed.bus.task.right
    alone = (composed.bus.alone(h, z, k) for k in range(len(composed.bus.ids)))  # one at a time
    return max(alone, key=lambda p: float(judge(p, rows, composed.bus.labels).mean()))


def _mae(composed: Composed, rows: Sequence[Row], h: Tensor) -> dict[str, float] | None:
    """Return the mean absolute error, overall and by domain; None where labels are answered."""
    task = composed.bus.task
    if not isinstance(task, Regression):
        return None
    with torch.inference_mode():
        error = task.error(composed.bus(h)[0], rows)
    return {"overall": float(error.mean()), **by_domain(error, rows)}


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
