"""The author's path where text is generated: passages in, a packaged expert out."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from ...registry.errors import UsageError
from ...registry.manifest import ExpertManifest
from ...registry.project import ExpertPlan
from ..authoring.card_files import CardFile, no_card, texts_card
from ..authoring.checkpoint import resuming
from ..authoring.expert_run import ExpertSettings, expert_logits
from ..authoring.parts import Parts
from ..authoring.shop import Shop, write_package
from ..authoring.train_expert import Rows, train_expert
from ..bus import LayerNorm
from ..experts import Expert
from ..pieces import pieces
from ..progress import Progress
from ..rows import Row
from .spelling import byte_counts

__all__ = ["train_generator"]

CANARIES = 8


def train_generator(
    project: Path,
    plan: ExpertPlan,
    parts: Parts,
    *,
    shop: Shop,
    settings: ExpertSettings,
    resumable: bool = True,
    progress: Progress | None = None,
) -> ExpertManifest:
    """Train the causal expert of a project and write it into the project's package.

    Args:
        project: The project's folder.
        plan: What kind of expert it is.
        parts: Passages of the author's documents.
        shop: The generating backbone and what goes with it.
        settings: How to train; form and rank are the plan's.
        resumable: Whether to write a checkpoint after each epoch, and to go on from one.
        progress: Called with (epochs done, epochs in all).

    Raises:
        UsageError: If the plan cannot be carried out on this backbone.
    """
    _check(plan)
    backbone = shop.backbone
    norm = LayerNorm(width=backbone.width, eps=backbone.eps)
    others = shop.others(plan.id)

    def read(texts: Sequence[str]) -> Tensor:
        z: Tensor = norm(shop.encode(texts))
        return z

    training = (plan, settings, shop.manifest.fingerprint, parts, others)
    with resuming(project, resumable=resumable, of=training) as checkpoint:
        trained = train_expert(
            _features(shop, parts.train),
            norm=norm,
            classifier=backbone.classifier,
            labels=(),
            domain_labels=(),
            settings=settings,
            task=backbone.task,
            valid=_features(shop, parts.valid) if parts.valid else None,
            background=shop.encode(others) if others else None,
            checkpoint=checkpoint,
            progress=progress,
        )
        return write_package(
            project,
            plan,
            trained,
            shop=shop,
            settings=settings,
            part=trained.expert,
            read=read,
            domain="text",
            card=_card(plan, parts),
            canary=read([parts.train[0].text])[:CANARIES],
            vocabulary=shop.manifest.tokenizer,
            data=hashlib.sha256("\n".join(_texts(parts.train)).encode()).hexdigest(),
            metrics=_metrics(trained.expert, shop, norm, parts),
        )


def _check(plan: ExpertPlan) -> None:
    if plan.writes not in {None, "hidden"} or {plan.reads_tap, plan.writes_tap} != {"final"}:
        raise UsageError(
            f"expert {plan.id!r} is for a backbone that generates text",
            expected="writes hidden, reads and writes at the end",
            found=f"writes {plan.writes}, taps {plan.reads_tap} and {plan.writes_tap}",
            hint="Correct [tool.redhost.expert] in the project's pyproject.toml.",
        )


def _features(shop: Shop, rows: Sequence[Row]) -> Rows:
    """Return the states of passages with their next tokens."""
    answers = [r.label for r in shop.backbone.unfold(rows)]
    return Rows(h=shop.encode(_texts(rows)), answers=answers)


def _card(plan: ExpertPlan, parts: Parts) -> CardFile:
    if plan.card == "none":
        return no_card()
    if plan.card == "texts":
        return texts_card(parts.card_rows)
    raise UsageError(
        f"expert {plan.id!r} cannot ship a card of {plan.card}",
        expected="texts, or none",
        found=plan.card,
        hint="What a causal router hears is not in single vectors.",
    )


def _metrics(
    expert: Expert, shop: Shop, norm: Callable[[Tensor], Tensor], parts: Parts
) -> dict[str, float]:
    """Return bits per byte on the passages set aside, of the expert and of the backbone alone."""
    if not (rows := (*parts.valid, *parts.gate)):
        return {}
    data = _features(shop, rows)
    target = shop.backbone.task.targets(data.answers, ())
    told = sum(byte_counts(shop.backbone.trunk, _texts(rows)))
    nats = {"bits_per_byte": 0.0, "backbone_bits_per_byte": 0.0}
    head = shop.backbone.classifier
    assert head is not None  # noqa: S101  (a generating backbone has one)
    with torch.inference_mode():
        for piece in pieces(len(target), cost=len(head)):
            h = data.h[piece]
            for name, logits in (
                ("bits_per_byte", expert_logits(expert, h, norm(h), head)),
                ("backbone_bits_per_byte", h @ head.T),
            ):
                loss = shop.backbone.task.loss(logits, target[piece])
                nats[name] += float(loss) * len(logits)
    return {name: x / math.log(2) / told for name, x in nats.items()}


def _texts(rows: Sequence[Row]) -> list[str]:
    return [r.text for r in rows]
