"""Accuracy of the teams' experts as `redhost recompose` composes them, and of systems without them.

Authors use the public path (`split_rows`, `train_package`); hosts compose with the defaults.
"""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from redhost_report.ood import evaluate_ood
from redhost_words.expert import CARD, COUNTS, WEIGHTS, WORDS, WordsExpert
from redhost_words.router import WordsRouter
from torch import Tensor

import redhost
from red_lab.text.desk import Desk, hits
from red_lab.text.pooled import POOLED
from redhost.core.bus.bus import BACKBONE, Bus
from redhost.core.bus.layout import WideNorm
from redhost.core.evaluation.judge import judge, judge_oracle
from redhost.core.evaluation.reliability import reliability
from redhost.core.routers.ridge import choose_regression
from redhost.core.training.router_data import columns_data

__all__ = ["CURVE", "SETS", "curve", "systems"]

CURVE = (8, 16, 32, 64, 128, 256, 512)
"""Rows of a team; the last point is all of them."""

SETS = 0.9
"""The coverage that label sets are asked for."""

FILES = {"counts": (COUNTS,), "card": ("card.safetensors", CARD), "weights": (WEIGHTS, WORDS)}
"""Kind of content → the files of a package."""


def systems(desk: Desk) -> dict[str, Any]:
    """Train the experts and measure everything on the test rows.

    Returns:
        Hits by system, 0 or 1 for each test row, and the other measurements.
    """
    folders = desk.authors(where="default")
    outcome = desk.compose(folders)
    composed, read = outcome.composed, desk.reader(outcome.composed)
    h, texts = read([r.text for r in desk.test]), [r.text for r in desk.test]
    plain = desk.compose(desk.authors(where="linear", form="linear"), kind="ridge").composed
    result = judge(composed, h, desk.test)
    found = {name: measure(desk) for name, measure in POOLED.items()} | {
        "default": result.hits.tolist(),
        "linear": judge(plain, desk.h(desk.test), desk.test).hits.tolist(),
        **_no_expert(desk, composed, h),
        "random": judge(_shuffled(composed), h, desk.test).hits.tolist(),
        "uniform": _uniform(composed, h, desk.test),
        "oracle": judge_oracle(composed, h, desk.test).hits.tolist(),
    }
    heaviest = [composed.bus.columns[k] for k in result.heaviest.tolist()]
    sets = [a.labels or () for a in composed.answer(texts, sets=SETS, features=h)]
    return {
        "hits": found,
        "texts": [texts.index(t) for t in texts],
        "labels": sum(len(y) for y in desk.corpus.teams.values()),
        "train_rows": {t: len(p.rows) for t, p in desk.parts.items()},
        "router": outcome.receipt.router.kind,
        "forms": [_form(folder) for folder in folders],
        "gate": outcome.receipt.accuracy.overall,
        "domain": _mean([c == r.domain for c, r in zip(heaviest, desk.test, strict=True)]),
        "sets": {
            "covered": _mean([r.label in y for r, y in zip(desk.test, sets, strict=True)]),
            "labels": _mean([len(y) for y in sets]),
        },
        "strangers": {
            source: msgspec.structs.asdict(evaluate_ood(composed, outside, desk.test, encode=read))
            for source, outside in desk.corpus.outside().items()
        },
        "calibration": {
            "composed": _figures(result.confidence, result.hits),
            "each": _each(composed, h, desk.test),
        },
        "bytes": {kind: _bytes(folders, names) for kind, names in FILES.items()},
    }


def curve(desk: Desk) -> list[dict[str, Any]]:
    """Limit every team to a number of rows; return accuracies for each number."""
    most = max(len(p.rows) for p in desk.parts.values())
    return [_point(desk, n) for n in (*(n for n in CURVE if n < most), None)]


def _point(desk: Desk, rows: int | None) -> dict[str, Any]:
    few = desk.having(rows)
    folders = few.authors(where=f"of-{rows}")
    composed = few.compose(folders).composed
    h = few.reader(composed)([r.text for r in few.test])
    plain = few.compose(few.authors(where=f"linear-of-{rows}", form="linear")).composed
    found = {
        "default": judge(composed, h, few.test).hits.tolist(),
        "linear": judge(plain, few.h(few.test), few.test).hits.tolist(),
        "oracle": judge_oracle(composed, h, few.test).hits.tolist(),
        **_no_expert(few, composed, h),
        "pooled ridge": POOLED["pooled ridge"](few),
    }
    return {
        "rows": rows,
        "forms": [_form(folder) for folder in folders],
        "accuracy": {name: _mean(right) for name, right in found.items()},
    }


def _no_expert(desk: Desk, composed: redhost.ComposedModel, h: Tensor) -> dict[str, list[float]]:
    """Answer from the cards' sums alone; under a router of words, also from counts."""
    bus, router = composed.bus, composed.bus.router
    data = columns_data(composed, encode=desk.reader(composed))[: len(bus.ids)]
    labels = [y for d in data for y in d.statistics.labels]
    regression = choose_regression(data, by_label=True)
    weight, bias = regression.solved.logits(beta=regression.beta, kappa=regression.kappa)
    with torch.inference_mode():
        signals = bus.signals(bus.norm(h))
        scores = {"ridge alone": signals.z.double() @ weight.T + bias}
        if isinstance(router, WordsRouter) and (added := router.added(signals)) is not None:
            solved = torch.nn.functional.linear(signals.z, router.weight, router.bias)
            rows = torch.cat([d.statistics.counts for d in data])
            prior = router.scale[1] * rows.log().float()  # scaled as the counts are
            scores["counts alone"] = added[:, : len(labels)] + prior
            scores["counts and ridge"] = (solved + added)[:, : len(labels)]
    return {name: hits(labels, score, desk.test) for name, score in scores.items()}


def _shuffled(composed: redhost.ComposedModel) -> redhost.ComposedModel:
    """Return the same composition with the weights of its experts shuffled."""
    experts, generator = dict[str, redhost.Expert](), torch.Generator().manual_seed(0)
    for expert_id, expert in zip(composed.bus.ids, composed.bus.parts(), strict=True):
        experts[expert_id] = other = copy.deepcopy(expert)
        weights: list[Tensor] = [p.detach() for p in other.parameters()]
        if isinstance(other, WordsExpert):
            weights.append(other.table[:-1, :-1])  # without idf, and the row of unknown places
        for p in weights:
            p.copy_(p.flatten()[torch.randperm(p.numel(), generator=generator)].view_as(p))
    # A new bus: an existing one holds precomputed products and stacks of the old weights.
    backbone, norm = composed.backbone, composed.bus.norm
    bus = Bus(
        backbone,
        norm=norm.norm if isinstance(norm, WideNorm) else norm,
        router=composed.bus.router,
        experts=experts,
        backbone_column=BACKBONE in composed.bus.columns,
        layout=backbone.layout,
    )
    return dataclasses.replace(composed, bus=bus.eval().requires_grad_(False))


def _uniform(
    composed: redhost.ComposedModel, h: Tensor, rows: Sequence[redhost.Row]
) -> list[float]:
    """Return the hits of the experts with equal weights."""
    bus = composed.bus
    weights = torch.tensor([float(c != BACKBONE) / len(bus.ids) for c in bus.columns])
    with torch.inference_mode():
        p = bus.probabilities(h, bus.norm(h), weights.repeat(len(h), 1))
    return [float(right) for right in bus.task.head.right(p, rows, bus.labels)]


def _each(
    composed: redhost.ComposedModel, h: Tensor, rows: Sequence[redhost.Row]
) -> dict[str, float]:
    """Return the calibration of every expert's own answers to rows of its domain."""
    bus, confidence, right = composed.bus, list[Tensor](), list[Tensor]()
    for column, expert in enumerate(bus.ids):
        at = [n for n, r in enumerate(rows) if r.domain == expert]
        with torch.inference_mode():
            p = bus.own_answer(h[at], bus.norm(h[at]), column)
        confidence.append(p.amax(-1))
        right.append(bus.task.head.right(p, [rows[n] for n in at], bus.answered_by(column)))
    return _figures(torch.cat(confidence), torch.cat(right))


def _figures(confidence: Tensor, right: Tensor) -> dict[str, float]:
    return {
        "ece": reliability(confidence, right).ece,
        "confidence": float(confidence.double().mean()),
        "accuracy": float(right.double().mean()),
    }


def _form(folder: Path) -> str:
    return str(json.loads((folder / "expert.json").read_text("utf-8"))["form"])


def _bytes(folders: Sequence[Path], names: Sequence[str]) -> float:
    """Return the size of some files of a package, as the mean over packages."""
    sizes = (f.stat().st_size for folder in folders for n in names if (f := folder / n).exists())
    return sum(sizes) / len(folders)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
