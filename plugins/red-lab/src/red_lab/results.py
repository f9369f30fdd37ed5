"""Measure the shipped set-up over the splits: a backbone built for each, intervals by pair.

Systems that need no extra training come from `evaluate`. Two systems are trained here: one adapter
with the parameters of all experts on all their data, and the ceiling, the backbone's own blocks
adapted on all the data.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import redhost
from red_lab.arithmetic import RANGES, SPLITS, Split, pairs_in, pairs_with
from red_lab.base import LABELS, SHARE, adapt_on, build_all, language_model
from red_lab.intervals import Array, mean_within
from red_lab.metrics import Metrics, cached_json, render, write_results
from red_lab.ranges import EXPERT, RangeTrainingContext, open_range_training, role_rows, train
from red_lab.tiny_model import pretrain
from redhost.core.composition.options import RecomposeOptions
from redhost.core.composition.recompose import compose
from redhost.core.evaluation.evaluate import hits_by_system

__all__ = ["measure", "page", "run", "summarise"]

NAMES = {
    "backbone": "backbone alone",
    "best_single": "best single expert (chosen on these very rows)",
    "uniform": "uniform weights",
    "sum": "plain sum of all experts, no router",
    "hard": "trained router, hard top-1",
    "mixture": "mixture over the same experts",
    "routed_centroid": "router: nearest centroid",
    "routed_statistics": "router: statistics",
    "routed_evidence": "router: evidence",
    "routed_linear": "router: linear",
    "routed_mlp": "router: MLP",
    "single_adapter": "one adapter, same parameters, all data",
    "oracle": "oracle routing (label-informed)",
    "ceiling": "ceiling: the backbone's blocks adapted on all data",
}


def page(metrics: Metrics) -> str:
    """Return the page for metrics of the schema ``red-lab.tiny-ranges/1``."""
    ranges = [name for name, _, _ in RANGES]
    return render("tiny-ranges", metrics, names=NAMES, ranges=ranges)


log = logging.getLogger("red_lab")

KINDS = ("evidence", "statistics", "linear", "mlp", "centroid")
"""Router kinds compared on gate rows; ties go to the earlier one."""

Hits = dict[str, list[float]]


def run(*, splits: int, out: Path, work: Path) -> Path:
    """Measure the splits that are not measured yet, and write the report.

    Args:
        splits: Number of splits, at most five.
        out: Folder of metrics.json and the report.
        work: Folder of checkpoints and of the results of single splits.

    Returns:
        The path of metrics.json.
    """
    measured = []
    for number in range(min(splits, SPLITS)):
        split = work / f"split{number}"
        measured.append(cached_json(split / "result.json", partial(measure, number, work=split)))
    return write_results(summarise(measured), out, page=page)


def measure(number: int, *, work: Path) -> dict[str, Any]:
    """Build a split's packages and measure everything on its held-out rows."""
    split = Split.numbered(number)
    start = time.perf_counter()
    backbone, *experts = build_all(number, seed=0, out=work / "packages", work=work)
    built = time.perf_counter()
    context = open_range_training(backbone, split)
    gate, hits = {}, {}
    for kind in KINDS:
        outcome = compose(backbone, experts, options=RecomposeOptions(router=kind))
        gate[kind] = outcome.receipt.accuracy.overall
        rows = outcome.composed.evaluation
        found = hits_by_system(outcome.composed, rows, encode=context.features)
        hits[f"routed_{kind}"] = found["routed"].tolist()
        if kind == KINDS[0]:
            hits |= {name: v.tolist() for name, v in found.items() if name != "routed"}
            left = _leave_one_out(backbone, experts, context)
    hits["single_adapter"] = _single_adapter(context, rows)
    hits["ceiling"] = _ceiling(split, rows, work=work)
    return {
        "split": number,
        "texts": [r.text for r in rows],
        "domains": [r.domain for r in rows],
        "hits": hits,
        "left_out": left,
        "gate": gate,
        "seconds": {"build": built - start, "measure": time.perf_counter() - built},
    }


def summarise(measured: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the metrics over all splits: means, intervals, paired differences."""
    pool = Pool(measured)
    default = max(KINDS, key=lambda k: (pool.gate(k), -KINDS.index(k)))
    hits = {name: pool.hits(name) for name in measured[0]["hits"]}
    return {
        "schema": "red-lab.tiny-ranges/1",
        "splits": len(measured),
        "rows": len(pool.clusters),
        "share": SHARE,
        "default_router": default,
        "gate": {k: pool.gate(k) for k in KINDS},
        "systems": {
            n: {"accuracy": mean_within(hits[n], pool.clusters), "ranges": pool.ranges(n)}
            for n in hits
        },
        "paired": {
            f"{default} - {other}": mean_within(
                hits[f"routed_{default}"] - hits[other], pool.clusters
            )
            for other in ("backbone", "single_adapter", "oracle", "mixture", "ceiling")
        },
        "left_out": {n: pool.without(n) for n in sorted(measured[0]["left_out"])},
        "seconds": {
            k: float(np.median([m["seconds"][k] for m in measured])) for k in ("build", "measure")
        },
    }


class Pool:
    """The rows of all splits together; a cluster is a pair of operands of one split."""

    def __init__(self, measured: Sequence[Mapping[str, Any]]) -> None:
        self.measured = measured
        self.clusters = [
            f"{m['split']} {next(iter(pairs_in(t)))}" for m in measured for t in m["texts"]
        ]
        self.domains = np.array([d for m in measured for d in m["domains"]])

    def hits(self, name: str, *, key: str = "hits") -> Array:
        """Return the hits of a system over all splits, ``(N,)``."""
        return np.array([x for m in self.measured for x in m[key][name]])

    def gate(self, kind: str) -> float:
        """Return a router kind's mean accuracy on the gate rows."""
        return float(np.mean([m["gate"][kind] for m in self.measured]))

    def ranges(self, name: str) -> dict[str, float]:
        """Return the accuracy by range."""
        hits = self.hits(name)
        return {n: float(hits[self.domains == n].mean()) for n, _, _ in RANGES}

    def without(self, expert_id: str) -> dict[str, dict[str, float]]:
        """Return each range's change of accuracy without an expert, paired, router retrained."""
        change = self.hits(expert_id, key="left_out") - self.hits(f"routed_{KINDS[0]}")
        found = {}
        for name, _, _ in RANGES:
            mask = self.domains == name
            clusters = [c for c, m in zip(self.clusters, mask, strict=True) if m]
            found[name] = mean_within(change[mask], clusters)
        return found


def _leave_one_out(backbone: Path, experts: Sequence[Path], context: RangeTrainingContext) -> Hits:
    """Return the hits of the default router retrained without each expert."""
    found: Hits = {}
    for i, (name, _, _) in enumerate(RANGES):
        others = [p for n, p in enumerate(experts) if n != i]
        outcome = compose(backbone, others, options=RecomposeOptions(router=KINDS[0]))
        rows = outcome.composed.evaluation
        hits = hits_by_system(outcome.composed, rows, encode=context.features)
        found[name] = hits["routed"].tolist()
    return found


def _single_adapter(context: RangeTrainingContext, rows: Sequence[redhost.Row]) -> list[float]:
    """Train one adapter with all experts' ranks on all experts' rows; return its hits."""
    settings = dataclasses.replace(EXPERT, rank=len(RANGES) * (EXPERT.rank or 0), off_domain=0.0)
    adapter = train(context, role_rows(context.split, "train"), name=None, settings=settings)
    h = context.features([r.text for r in rows])
    with torch.inference_mode():
        logits = (h + adapter(context.norm(h))) @ context.classifier.T
    return _right(logits, rows)


def _ceiling(split: Split, rows: Sequence[redhost.Row], *, work: Path) -> list[float]:
    """Adapt the backbone's own blocks on all the experts' rows; return the hits."""
    bare = language_model(pretrain(split, checkpoint=work / "lm-0.pt"))
    backbone = adapt_on(bare, pairs_with(split, "train"), seed=0)
    if backbone.classifier is None:
        raise redhost.UsageError("the base stage made no classifier")
    return _right(backbone.encode([r.text for r in rows]) @ backbone.classifier.T, rows)


def _right(logits: torch.Tensor, rows: Sequence[redhost.Row]) -> list[float]:
    return [float(LABELS[int(i)] == r.label) for i, r in zip(logits.argmax(-1), rows, strict=True)]
