"""Five teams on one sentence encoder, against one head trained on everybody's data.

The authors' path is the one users have (`split_rows`, `train_package`), the composition is
`redhost.compose`; only what no host can do, training on everybody's data at once, is added here.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

import redhost
from red_lab.newsgroups import TEAMS, background, encoder, outside, rows
from redhost.core.evaluation.evaluate import hits_by_system
from redhost.core.evaluation.ood import evaluate_ood
from redhost.core.training.router_data import columns_data

__all__ = [
    "CARDS",
    "KINDS",
    "Desk",
    "author",
    "compose",
    "joins",
    "measure",
    "open_desk",
    "plain_classifier",
    "union_head",
]

Card = Literal["texts", "vectors", "statistics"]

CARDS: Mapping[Card, str] = {
    "texts": "256 texts",
    "vectors": "256 vectors and sums over all rows",
    "statistics": "sums over all rows",
}
KINDS = ("evidence", "quadratic", "statistics", "linear", "mlp", "centroid")
MAX_TOKENS = 128
"""What the encoder was trained with; its tokenizer's own setting."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Desk:
    """What a run works with.

    Attributes:
        context: The backbone and what goes with it.
        folder: The backbone package's folder.
        parts: Each author's rows.
        test: The rows to judge on.
        work: Where packages and features are kept.
    """

    context: redhost.authoring.AuthoringContext
    folder: Path
    parts: Mapping[str, redhost.authoring.DataSplits]
    test: Sequence[redhost.Row]
    work: Path

    def z(self, given: Sequence[redhost.Row]) -> Tensor:
        """Return bus vectors ``(N, D)``."""
        norm = redhost.LayerNorm(width=self.context.backbone.width, eps=self.context.backbone.eps)
        vectors: Tensor = norm(self.context.encode([r.text for r in given]))
        return vectors


def open_desk(work: Path, *, validation: bool) -> Desk:
    """Make the backbone's package and set every author's rows aside."""
    train, test = (rows(part, validation=validation) for part in ("train", "test"))
    project = work / "packages" / "red-backbone-minilm"
    shutil.rmtree(project, ignore_errors=True)
    redhost.authoring.new_backbone(
        project,
        "minilm",
        f"hf:{encoder()}",
        pooling="mean",
        max_tokens=MAX_TOKENS,
        background=background(),
    )
    folder = project / "src" / "red_backbone_minilm"
    return Desk(
        context=redhost.authoring.open_for_training(folder, cache=work / "cache"),
        folder=folder,
        parts={t: redhost.authoring.split_rows([r for r in train if r.domain == t]) for t in TEAMS},
        test=test,
        work=work,
    )


def measure(desk: Desk, *, seed: int) -> dict[str, Any]:
    """Train the five experts and measure everything on the test rows.

    Returns:
        Hits by system, 0 or 1 for each test row, and what came out beside them.
    """
    hits: dict[str, list[float]] = {}
    outcomes = {}
    for card in CARDS:
        folders = [author(desk, team, card=card, seed=seed) for team in TEAMS]
        for kind in KINDS:
            outcome = compose(desk, folders, kind=kind)
            found = _hits(desk, outcome.composed)
            hits[f"{kind} {card}"] = found["routed"].tolist()
            outcomes[kind, card] = outcome
        for name in ("oracle", "uniform", "best_single"):
            hits[name] = found[name].tolist()
        hits[f"plain {card}"] = plain_classifier(desk, outcome.composed)
    for name, rank in (("union head", None), ("union head, summed rank", _summed_rank(desk))):
        hits[name] = union_head(desk, rank=rank, seed=seed)
    default = outcomes["evidence", "texts"].composed
    return {
        "seed": seed,
        "hits": hits,
        "outside": _outside(desk, default),
        "joins": {team: joins(desk, team, seed=seed) for team in TEAMS},
        "gate": {f"{k} {c}": o.receipt.accuracy.overall for (k, c), o in outcomes.items()},
        "temperatures": {
            i: e.temperature for i, e in zip(default.bus.ids, default.bus.parts(), strict=True)
        },
    }


def author(desk: Desk, team: str, *, card: Card, seed: int) -> Path:
    """Do what one team does: train its expert alone and package it."""
    plan = redhost.authoring.ExpertPlan(id=team, writes="labels", card=card)
    project = desk.work / "packages" / f"{card}-{seed}" / f"red-expert-{team}"
    shutil.rmtree(project, ignore_errors=True)
    folder = redhost.authoring.write_project(project, kind="expert", package_id=team, summary=team)
    redhost.authoring.train_package(
        project, plan, desk.parts[team], context=desk.context, settings=_own(seed)
    )
    return folder


def compose(desk: Desk, folders: Sequence[Path], *, kind: str) -> redhost.RecomposeResult:
    """Compose packages as a host does."""
    options = redhost.RecomposeOptions(router=kind)
    return redhost.compose(desk.folder, folders, options=options, cache=desk.work / "cache")


def union_head(desk: Desk, *, rank: int | None, seed: int) -> list[float]:
    """Train one head of the experts' form on everybody's rows; return its hits.

    It sees what no expert trains on, the rows set aside for cards, as well.
    """
    everyone = [r for p in desk.parts.values() for r in (*p.train, *p.fit, *p.gate)]
    valid = [r for p in desk.parts.values() for r in p.valid]
    labels = sorted({r.label for r in everyone})
    trained = redhost.authoring.train_expert(
        _rows(desk, everyone),
        norm=redhost.LayerNorm(width=desk.context.backbone.width, eps=desk.context.backbone.eps),
        classifier=None,
        labels=(),
        domain_labels=labels,
        settings=dataclasses.replace(_own(seed), rank=rank, off_domain=0.0),
        valid=_rows(desk, valid),
    )
    with torch.inference_mode():
        best = trained.expert(desk.z(desk.test)).argmax(-1)
    return [float(labels[int(i)] == r.label) for i, r in zip(best, desk.test, strict=True)]


def plain_classifier(desk: Desk, composed: redhost.ComposedModel) -> list[float]:
    """Classify by the cards' statistics alone, with no expert: linear discriminants."""
    config, ids = composed.backbone.bus_config(), composed.bus.ids
    router = redhost.plugins.build_router("statistics", config, ids, 0)
    data = columns_data(composed, encode=desk.context.encode)[: len(ids)]
    if not isinstance(router, redhost.plugins.StatisticsRouter):
        raise TypeError("no statistics router")
    router.solve(data)
    share = torch.cat([d.statistics.counts.sum().expand(len(d.statistics.labels)) for d in data])
    with torch.inference_mode():
        score = torch.nn.functional.linear(desk.z(desk.test), router.weight, router.bias)
        best = (score + share.log().float()).argmax(-1)
    labels = [y for d in data for y in d.statistics.labels]
    return [float(labels[int(i)] == r.label) for i, r in zip(best, desk.test, strict=True)]


def joins(desk: Desk, team: str, *, seed: int) -> dict[str, Any]:
    """Let one expert join the four others: what changes for them?"""
    folders = {t: desk.work / "packages" / f"texts-{seed}" / f"red-expert-{t}" for t in TEAMS}
    packages = {t: next((p / "src").iterdir()) for t, p in folders.items()}
    before = compose(desk, [p for t, p in packages.items() if t != team], kind="evidence").composed
    after = compose(desk, list(packages.values()), kind="evidence").composed
    others = [r for r in desk.test if r.domain != team]
    mine = [r for r in desk.test if r.domain == team]
    return {
        "changed_probabilities": _changed(desk, before, after, others),
        "before": _routed(desk, before, others),
        "after": _routed(desk, after, others),
        "newcomer": _routed(desk, after, mine),
        "refused": float(_refused(desk, before, after)),
    }


def _refused(desk: Desk, before: redhost.ComposedModel, after: redhost.ComposedModel) -> bool:
    """Say whether a host would refuse: a domain falls on its gate rows by more than it may."""
    for name in before.bus.ids:
        gate = desk.parts[name].gate
        h = desk.context.encode([r.text for r in gate])
        fall = before.accuracy(h, gate)[name] - after.accuracy(h, gate)[name]
        if fall > max(0.01, 2 / len(gate)) + 1e-9:
            return True
    return False


def _changed(
    desk: Desk,
    before: redhost.ComposedModel,
    after: redhost.ComposedModel,
    given: Sequence[redhost.Row],
) -> int:
    """Count the answers p_i(y|x) of the old experts that are not the same bits as before."""
    h = desk.context.encode([r.text for r in given])
    place = [after.bus.labels.index(y) for y in before.bus.labels]
    changed = 0
    with torch.inference_mode():
        z = before.bus.norm(h)
        for name in before.bus.ids:
            old = before.bus.alone(h, z, before.bus.columns.index(name))
            new = after.bus.alone(h, z, after.bus.columns.index(name))
            changed += int((old != new[:, place]).any(-1).sum())
    return changed


def _routed(desk: Desk, composed: redhost.ComposedModel, given: Sequence[redhost.Row]) -> float:
    hits = hits_by_system(composed, given, encode=desk.context.encode)["routed"]
    return float(hits.mean())


def _hits(desk: Desk, composed: redhost.ComposedModel) -> dict[str, Tensor]:
    return hits_by_system(composed, desk.test, encode=desk.context.encode)


def _outside(desk: Desk, composed: redhost.ComposedModel) -> dict[str, float]:
    report = evaluate_ood(composed, outside(), desk.test, encode=desk.context.encode)
    return {
        "declined": report.declined,
        "declined_inside": report.declined_inside,
        "auroc": report.auroc,
        "rows": report.rows,
    }


def _rows(desk: Desk, given: Sequence[redhost.Row]) -> redhost.authoring.ExpertRows:
    h = desk.context.encode([r.text for r in given])
    return redhost.authoring.ExpertRows(h=h, answers=[r.label for r in given])


def _own(seed: int) -> redhost.authoring.ExpertSettings:
    """Return the settings of `redhost train-expert`."""
    return redhost.authoring.ExpertSettings(space="labels", seed=seed)


def _summed_rank(desk: Desk) -> int:
    return len(TEAMS) * (desk.context.backbone.width // 4)
