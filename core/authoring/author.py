"""The author's path where labels or numbers are answered: rows in, a packaged expert out."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from ...registry.errors import UsageError
from ...registry.manifest import ExpertManifest
from ...registry.project import ExpertPlan
from ..backbones.backbone import Backbone
from ..backbones.graft import Tapping, check_taps, reader
from ..backbones.taps import FINAL, block_at, tapped
from ..bus import LayerNorm
from ..experts import Expert
from ..progress import Progress
from ..rows import Row
from ..statistics import Statistics
from ..tasks import Regression, Task
from .calibrate import fit_temperature
from .card_files import CardFile, no_card, statistics_card, texts_card, vectors_card
from .checkpoint import resuming
from .expert_run import ExpertSettings, TrainedExpert, expert_logits
from .parts import Parts
from .shop import Read, Shop, write_package
from .train_expert import Rows, train_expert
from .train_graft import GraftRows, train_graft

__all__ = ["train_package"]

CANARIES = 8


def train_package(
    project: Path,
    plan: ExpertPlan,
    parts: Parts,
    *,
    shop: Shop,
    settings: ExpertSettings,
    resumable: bool = True,
    progress: Progress | None = None,
) -> ExpertManifest:
    """Train the expert of a project and write it into the project's package.

    Args:
        project: The project's folder.
        plan: What kind of expert it is.
        parts: The author's rows.
        shop: The backbone and what goes with it.
        settings: How to train; form, space and rank are the plan's.
        resumable: Whether to write a checkpoint after each epoch, and to go on from one.
        progress: Called with (epochs done, epochs in all).

    Raises:
        UsageError: If the plan cannot be carried out on this backbone.
    """
    backbone, task = shop.backbone, shop.backbone.task
    space = plan.writes or "labels"
    plan = msgspec.structs.replace(plan, writes=space)
    settings = dataclasses.replace(settings, space=space)
    _require_card_rows(plan, parts)
    labels = _labels(plan, parts, backbone)
    broken = check_taps(plan.id, backbone, reads=plan.reads_tap, writes=plan.writes_tap)
    if broken is not None:
        raise broken.error(f"expert {plan.id!r}")
    norm = LayerNorm(width=backbone.width, eps=backbone.eps)
    read = _reader(plan, shop, norm)
    training = (plan, settings, shop.manifest.fingerprint, parts, shop.others(plan.id))
    with resuming(project, resumable=resumable, of=training) as checkpoint:
        if plan.writes_tap == FINAL:
            trained = _train(plan, parts, shop, settings, labels, read, checkpoint, progress)
        else:
            trained = _train_graft(plan, parts, shop, settings, labels, checkpoint, progress)
        told = Tapping(expert=trained.expert, reads=plan.reads_tap, writes=plan.writes_tap)
        heard = _heard(plan, told, read, backbone)
        if space == "labels" and parts.fit and not isinstance(task, Regression):
            told.expert.temperature = _temperature(told.expert, read(_texts(parts.fit)), parts.fit)
        return write_package(
            project,
            plan,
            trained,
            shop=shop,
            settings=settings,
            part=told.part,
            read=heard,
            domain=_domain(task, labels),
            card=_card(plan, parts, shop, labels, norm),
            canary=read(_texts(parts.train[:CANARIES])),
            data=_digest(parts),
            metrics=_metrics(told.part, shop, heard, parts),
        )


def _train(
    plan: ExpertPlan,
    parts: Parts,
    shop: Shop,
    settings: ExpertSettings,
    labels: Sequence[str],
    read: Read,
    checkpoint: Path | None,
    progress: Progress | None,
) -> TrainedExpert:
    """Train an expert on the bus, at its end or from a tap."""
    tap = plan.reads_tap != FINAL
    others = shop.others(plan.id)
    return train_expert(
        _features(shop, parts.train, read if tap else None),
        norm=LayerNorm(width=shop.backbone.width, eps=shop.backbone.eps),
        classifier=shop.backbone.classifier,
        labels=shop.backbone.labels,
        domain_labels=labels,
        settings=settings,
        task=shop.backbone.task,
        valid=_features(shop, parts.valid, read if tap else None) if parts.valid else None,
        background=shop.encode(others) if others else None,
        background_z=read(others) if others and tap else None,
        checkpoint=checkpoint,
        progress=progress,
    )


def _train_graft(
    plan: ExpertPlan,
    parts: Parts,
    shop: Shop,
    settings: ExpertSettings,
    labels: Sequence[str],
    checkpoint: Path | None,
    progress: Progress | None,
) -> TrainedExpert:
    """Train an expert that writes inside the trunk."""
    return train_graft(
        GraftRows(texts=_texts(parts.train), answers=[r.label for r in parts.train]),
        backbone=shop.backbone,
        reads=plan.reads_tap,
        writes=plan.writes_tap,
        settings=settings,
        labels=labels,
        valid=GraftRows(texts=_texts(parts.valid), answers=[r.label for r in parts.valid]),
        background=shop.others(plan.id),
        checkpoint=checkpoint,
        progress=progress,
    )


def _require_card_rows(plan: ExpertPlan, parts: Parts) -> None:
    """Refuse, before anything is trained, data that leaves no row for a card of rows."""
    if plan.card in {"texts", "vectors"} and not parts.fit:
        raise UsageError(
            f"expert {plan.id!r} has too few rows for a card of {plan.card}",
            expected="texts to set aside, beyond one for each label",
            found=f"{len(parts.train)} rows and none to set aside",
            hint="Bring more rows: a quarter of them goes to the card.",
        )


def _labels(plan: ExpertPlan, parts: Parts, backbone: Backbone) -> tuple[str, ...]:
    """Return the labels the expert may answer, in a stable order."""
    rows = [r for p in (parts.train, parts.valid, parts.fit, parts.gate) for r in p]
    found = set(backbone.task.groups([r.label for r in rows]))
    if plan.writes == "labels":
        return tuple(sorted(found))
    strange = sorted(found - set(backbone.labels))
    if strange:
        raise UsageError(
            f"expert {plan.id!r} writes {plan.writes}, through the backbone's classifier",
            expected=f"labels of backbone {backbone.name!r} ({len(backbone.labels)} of them)",
            found=", ".join(strange[:5]),
            hint='Set writes = "labels" in the project\'s pyproject.toml.',
        )
    return tuple(y for y in backbone.labels if y in found)


def _card(
    plan: ExpertPlan, parts: Parts, shop: Shop, labels: Sequence[str], norm: LayerNorm
) -> CardFile:
    """Write the kind of card the author chose."""
    if plan.card == "none":
        return no_card()
    if plan.card == "texts":
        return texts_card(parts.card_rows)
    rows = (*parts.train, *parts.valid, *parts.fit, *parts.gate)  # sums give no row away
    z = norm(shop.encode(_texts(rows)))
    groups = shop.backbone.task.groups([r.label for r in rows])
    if plan.card == "statistics":
        return statistics_card(z, groups, labels=labels)
    return vectors_card(
        fit_z=norm(shop.encode(_texts(parts.fit))),
        fit_labels=[r.label for r in parts.fit],
        gate_h=shop.encode(_texts(parts.gate)),
        gate_labels=[r.label for r in parts.gate],
        labels=labels,
        eps=shop.backbone.eps,
        statistics=Statistics.of_rows(z, groups),
        task=shop.backbone.task,
    )


def _domain(task: Task, labels: Sequence[str]) -> str:
    numbers = isinstance(task, Regression)
    return "texts with a number" if numbers else f"texts with one of {len(labels)} labels"


def _temperature(expert: Expert, z: Tensor, rows: Sequence[Row]) -> float:
    place = {y: n for n, y in enumerate(expert.labels)}
    with torch.inference_mode():
        return fit_temperature(expert(z), torch.tensor([place[r.label] for r in rows]))


def _metrics(expert: Expert, shop: Shop, read: Read, parts: Parts) -> dict[str, float]:
    """Return the share of rows answered rightly, by part; for numbers the MAE as well."""
    task = shop.backbone.task
    names = expert.labels if expert.space == "labels" else shop.backbone.labels
    metrics = {}
    for name, rows in (("train", parts.train), ("valid", parts.valid), ("gate", parts.gate)):
        if not rows:
            continue
        h = shop.encode(_texts(rows))
        with torch.inference_mode():
            logits = expert_logits(expert, h, read(_texts(rows)), shop.backbone.classifier)
        metrics[name] = float(task.right(logits, rows, names).mean())
        if isinstance(task, Regression):
            metrics[f"{name}_mae"] = float(task.error(logits, rows).mean())
    return metrics


def _reader(plan: ExpertPlan, shop: Shop, norm: LayerNorm) -> Read:
    """Return texts → what the expert reads ``(N, D)``: z, or its tap, normalised."""
    if plan.reads_tap == FINAL:
        return lambda texts: norm(shop.encode(texts))
    block = block_at(shop.backbone.trunk, plan.reads_tap)
    return lambda texts: norm(tapped(shop.backbone.trunk, texts, block=block))


def _heard(plan: ExpertPlan, told: Tapping, read: Read, backbone: Backbone) -> Read:
    """Return texts → what the expert has on the bus: what it reads, or what it added inside."""
    if plan.writes_tap == FINAL:
        return read
    inside = reader(backbone, plan.id, told)
    return lambda texts: inside(texts)[1]


def _features(shop: Shop, rows: Sequence[Row], read: Read | None) -> Rows:
    texts = _texts(rows)
    z = None if read is None else read(texts)
    return Rows(h=shop.encode(texts), answers=[r.label for r in rows], z=z)


def _texts(rows: Sequence[Row]) -> list[str]:
    return [r.text for r in rows]


def _digest(parts: Parts) -> str:
    """Return the sha256 over the rows an expert learnt from."""
    lines = [f"{r.text}\t{r.label}" for r in (*parts.train, *parts.valid)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
