"""Accuracy of the teams' experts under routers, compared with systems without experts.

Authors use the public path (`split_rows`, `train_package`); hosts compose with the defaults.
"""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from redhost_report.ood import evaluate_ood

import redhost
from red_lab.text.desk import Desk, best_of, hits
from red_lab.text.monoliths import MONOLITHS
from redhost.core.bus.bus import BACKBONE, Bus
from redhost.core.bus.layout import WideNorm
from redhost.core.evaluation.evaluate import hits_by_system
from redhost.core.evaluation.judge import judge
from redhost.core.routers import build_router
from redhost.core.routers.ridge import choose_regression
from redhost.core.routers.statistics import StatisticsRouter
from redhost.core.training.router_data import columns_data

__all__ = ["CURVE", "KINDS", "curve", "domain_right", "measure", "monoliths", "no_expert"]

KINDS = ("ridge", "statistics", "centroid", "linear", "mlp")
"""Router kinds in addition to the default; those with a covariance per column are too large."""

CURVE = (8, 16, 32, 64, 128, 256, 512)
"""Rows of a team; the last point is all of them."""

SETS = 0.9
"""The coverage that label sets are asked for."""


def monoliths(desk: Desk) -> dict[str, list[float]]:
    """Return the hits of models trained on pooled rows: 0 or 1 for each test row."""
    return {name: fit(desk) for name, (_, fit) in MONOLITHS.items()}


def measure(desk: Desk, *, seed: int) -> dict[str, Any]:
    """Train the experts and measure everything on the test rows.

    Returns:
        Hits by system, 0 or 1 for each test row, and the other measurements.
    """
    settings = redhost.authoring.ExpertSettings(space="labels", seed=seed)
    folders = [
        desk.author(team, rows, where=f"{desk.corpus.name}-{seed}", settings=settings)
        for team, rows in desk.parts.items()
    ]
    outcome = desk.compose(folders)
    composed, found = outcome.composed, dict[str, list[float]]()
    systems = hits_by_system(composed, desk.test, encode=desk.context.encode)
    for name in ("routed", "oracle", "uniform", "best_single"):
        found[name] = systems[name].tolist()
    for kind in KINDS:
        other = desk.compose(folders, kind=kind).composed
        found[f"router {kind}"] = judge(other, desk.h(desk.test), desk.test).hits.tolist()
    random = _shuffled(composed, seed=seed)
    found["random experts"] = judge(random, desk.h(desk.test), desk.test).hits.tolist()
    found |= no_expert(desk, composed)
    return {
        "seed": seed,
        "hits": found,
        "router": outcome.receipt.router.kind,
        "tried": dict(outcome.receipt.router.tried),
        "forms": [_form(folder) for folder in folders],
        "strangers": _strangers(desk, composed),
        "sets": _sets(desk, composed),
        "gate": outcome.receipt.accuracy.overall,
        "domain": domain_right(desk, composed),
    }


def curve(desk: Desk, rows: int | None) -> dict[str, Any]:
    """Limit every team to so many rows; compare the composition, a monolith and no expert.

    Args:
        desk: The corpus.
        rows: Rows of each team; None for all.
    """
    some = desk.having(rows)
    settings = redhost.authoring.ExpertSettings(space="labels", seed=0)
    folders, left_out = list[Path](), list[str]()
    for team, part in some.parts.items():
        try:
            where = f"{desk.corpus.name}-of-{rows}"
            folders.append(some.author(team, part, where=where, settings=settings))
        except redhost.RedhostError as e:
            left_out.append(f"{team}: {e}")
    composed = some.compose(folders).composed
    systems = hits_by_system(composed, desk.test, encode=desk.context.encode)
    found = {name: _mean(systems[name].tolist()) for name in ("routed", "oracle")}
    found |= {name: _mean(x) for name, x in no_expert(some, composed).items()}
    found["ridge"] = _mean(MONOLITHS["ridge"][1](some))
    return {"rows": rows, "accuracy": found, "left_out": left_out}


def _shuffled(composed: redhost.ComposedModel, *, seed: int) -> redhost.ComposedModel:
    """Return the same composition with the weights of its experts shuffled."""
    experts, generator = dict[str, redhost.Expert](), torch.Generator().manual_seed(seed)
    for expert_id, expert in zip(composed.bus.ids, composed.bus.parts(), strict=True):
        experts[expert_id] = other = copy.deepcopy(expert)
        with torch.no_grad():
            for p in other.state_dict().values():
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


def no_expert(desk: Desk, composed: redhost.ComposedModel) -> dict[str, list[float]]:
    """Answer from the cards' sums alone: by linear discriminants, and by ridge regression."""
    config, ids = composed.backbone.bus_config(), composed.bus.ids
    data = columns_data(composed, encode=desk.context.encode)[: len(ids)]
    labels = [y for d in data for y in d.statistics.labels]
    router = build_router("statistics", config, ids, 0)
    if not isinstance(router, StatisticsRouter):
        raise TypeError("no statistics router")
    router.solve(data)
    share = torch.cat([d.statistics.counts.sum().expand(len(d.statistics.labels)) for d in data])
    ridge = choose_regression(data, by_label=True)
    weight, bias = ridge.solved.logits(beta=ridge.beta, kappa=ridge.kappa)
    z = desk.z(desk.test)
    with torch.inference_mode():
        discriminant = torch.nn.functional.linear(z, router.weight, router.bias)
        solved = z.double() @ weight.T + bias
    return {
        "no expert, discriminants": hits(best_of(labels, discriminant + share.log()), desk.test),
        "no expert, ridge": hits(best_of(labels, solved), desk.test),
    }


def _form(folder: Path) -> str:
    return str(json.loads((folder / "expert.json").read_text("utf-8"))["form"])


def _strangers(desk: Desk, composed: redhost.ComposedModel) -> dict[str, dict[str, float]]:
    """Return how often texts of other sources, and the experts' own, are declined."""
    found = {}
    for source, texts in desk.corpus.outside().items():
        report = evaluate_ood(composed, texts, desk.test, encode=desk.context.encode)
        found[source] = {
            "declined": report.declined,
            "own": report.declined_inside,
            "auroc": report.auroc,
            "rows": float(report.rows),
        }
    return found


def _sets(desk: Desk, composed: redhost.ComposedModel) -> dict[str, float]:
    """Return how often label sets contain the correct label, and their mean size."""
    answers = composed.answer([r.text for r in desk.test], sets=SETS)
    sets = [a.labels or () for a in answers]
    right = [r.label in some for r, some in zip(desk.test, sets, strict=True)]
    return {"covered": _mean(right), "labels": _mean([len(some) for some in sets])}


def domain_right(desk: Desk, composed: redhost.ComposedModel) -> float:
    """Return the fraction of test rows whose column of largest weight is their own."""
    heaviest = judge(composed, desk.h(desk.test), desk.test).heaviest.tolist()
    own = [composed.bus.columns[k] == r.domain for k, r in zip(heaviest, desk.test, strict=True)]
    return _mean(own)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def of_seeds(measured: Sequence[Mapping[str, Any]], *names: str) -> float:
    """Return the mean over seeds of the value at a path of keys."""
    values = list[float]()
    for found in measured:
        value: Any = found
        for name in names:
            value = value[name]
        values.append(float(value))
    return _mean(values)
