"""Fold a composition into one expert of fixed cost, as a project that can be packed and shipped.

The merged expert writes hidden states where all experts of the composition share the backbone's
classifier, and otherwise to labels of its own: all labels of the bus. The experts, the router and
the generation stay as they are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from ...registry.errors import UsageError
from ...registry.manifest import BackboneRef, Training
from ...registry.project import ExpertPlan, package_in, write_plan
from ...registry.scaffold import check_free, check_id, write_project
from ..answering.composed import Composed, by_domain
from ..bus import NONE
from ..composing.verify import measure_off_domain
from ..encode import Encode
from ..experts import Expert
from ..learning.cards import gate_rows
from ..progress import Progress
from ..rows import Row
from ..tasks import Regression
from ..versions import library_versions
from .card_files import texts_card
from .distill import DistillSettings, Lesson, distil, divergence
from .expert_run import ExpertSettings, expert_logits
from .packaging import save_expert
from .parts import Parts, split_rows
from .train_expert import init_expert

__all__ = ["Merged", "merge", "own_texts"]

FEWEST = 16
"""Inputs without which nothing can be distilled, set aside and judged."""

CANARIES = 8


class Merged(msgspec.Struct, frozen=True, kw_only=True):
    """What a merge gives and what it loses.

    Attributes:
        id: The merged expert's id.
        generation: What was folded.
        rows: Inputs it learnt from.
        declined: Inputs left out because the composition declines them.
        kl: Mean KL(composition ‖ merged) on inputs set aside, nats.
        agreement: How often both give the same label there, 0–1.
        before: The composition's accuracy on the cards' gate rows, by domain and ``overall``.
        after: The merged expert's, alone at weight 1.
        parameters: Of the ``composition`` (experts and router) and of the ``merged`` expert.
        epoch: The epoch its weights are from.
    """

    id: str
    generation: int | None
    rows: int
    declined: int
    kl: float
    agreement: float
    before: dict[str, float]
    after: dict[str, float]
    parameters: dict[str, int]
    epoch: int


def merge(
    composed: Composed,
    texts: Sequence[str],
    *,
    expert_id: str,
    project: Path,
    encode: Encode,
    settings: DistillSettings,
    progress: Progress | None = None,
) -> Merged:
    """Distil a composition into a new project; nothing else is touched.

    Args:
        composed: The teacher.
        texts: Unlabelled inputs.
        expert_id: Id of the merged expert.
        project: The project's folder, which must not exist.
        encode: Texts → h ``(N, D)``.
        settings: How the student learns.
        progress: Called with (epochs done, epochs in all).

    Raises:
        UsageError: If the folder exists, the bus answers no labels, or there are too few inputs.
    """
    bus = composed.bus
    check_id(expert_id)
    check_free(project)
    if isinstance(bus.task, Regression):
        raise UsageError("merge folds answers that are labels", found="a bus that answers numbers")
    if composed.backbone.generates:
        raise UsageError("merge folds answers that are labels", found="a bus that tells tokens")
    labels = tuple(y for y in bus.labels if y != NONE)
    rows, declined = _answered(composed, texts, encode)
    parts = split_rows(rows)
    student = _student(composed, labels, settings)
    lessons = [_lesson(composed, part, labels, encode) for part in (parts.train, parts.valid)]
    classifier = None if bus.own else bus.classifier
    epoch = distil(student, *lessons, classifier=classifier, settings=settings, progress=progress)
    aside = _lesson(composed, (*parts.fit, *parts.gate), labels, encode)
    before, after = _accuracies(composed, student, classifier, labels, encode)
    merged = Merged(
        id=expert_id,
        generation=composed.generation,
        rows=len(parts.train),
        declined=declined,
        kl=float(divergence(student, aside, classifier)),
        agreement=_agreement(student, aside, classifier),
        before=before,
        after=after,
        parameters={
            "composition": _size(bus.experts) + _size(bus.router),
            "merged": _size(student),
        },
        epoch=epoch,
    )
    _write(project, composed, student, parts, merged, encode=encode, settings=settings)
    return merged


def own_texts(composed: Composed) -> list[str]:
    """Return the texts that the composition itself brings: fit rows of its cards, background."""
    cards = [r.text for c in composed.cards.values() for r in c.rows if r.part == "fit"]
    return [*cards, *(r.text for r in composed.background)]


def _answered(composed: Composed, texts: Sequence[str], encode: Encode) -> tuple[list[Row], int]:
    """Return the inputs with the teacher's labels, and how many it declines."""
    distinct = sorted(set(texts))
    _require_enough(len(distinct), found=str(len(distinct)))
    with torch.inference_mode():
        p, _ = composed.bus(encode(distinct))
    said = [composed.bus.labels[int(i)] for i in p.argmax(-1)]
    rows = [Row(text=t, label=y) for t, y in zip(distinct, said, strict=True) if y != NONE]
    declined = len(distinct) - len(rows)
    _require_enough(len(rows), found=f"{len(rows)}, and {declined} that are declined")
    return rows, declined


def _require_enough(inputs: int, *, found: str) -> None:
    if inputs < FEWEST:
        raise UsageError(
            "too few inputs to distil from",
            expected=f"{FEWEST} distinct texts or more",
            found=found,
            hint="Give unlabelled texts of the experts' domains with --data FILE.",
        )


def _student(composed: Composed, labels: tuple[str, ...], settings: DistillSettings) -> Expert:
    width, own = composed.backbone.width, bool(composed.bus.own)
    made = ExpertSettings(
        form="residual",
        space="labels" if own else "hidden",
        rank=settings.rank,
        seed=settings.seed,
    )
    return init_expert(made, width=width, out=len(labels) if own else width, labels=labels)


def _lesson(
    composed: Composed, rows: Sequence[Row], labels: Sequence[str], encode: Encode
) -> Lesson:
    """Return inputs with the teacher's probabilities over the labels it does not decline with."""
    bus = composed.bus
    h = encode([r.text for r in rows])
    with torch.inference_mode():
        p, _ = bus(h)
        z = bus.norm(h)
    h, z = bus.layout.narrow(h), bus.layout.narrow(z)
    p = p[:, [bus.labels.index(y) for y in labels]]
    p = p / p.sum(-1, keepdim=True).clamp_min(1e-12)
    return Lesson(h=h.clone(), z=z.clone(), p=p.clone())  # out of inference mode


def _agreement(student: Expert, lesson: Lesson, classifier: Tensor | None) -> float:
    said = expert_logits(student, lesson.h, lesson.z, classifier).argmax(-1)
    return float((said == lesson.p.argmax(-1)).double().mean())


def _accuracies(
    composed: Composed,
    student: Expert,
    classifier: Tensor | None,
    labels: Sequence[str],
    encode: Encode,
) -> tuple[dict[str, float], dict[str, float]]:
    """Return both accuracies on the cards' gate rows, by domain and overall."""
    h, rows = gate_rows(list(composed.cards.values()), encode=encode)
    if not rows:
        return {}, {}
    task, bus = composed.bus.task, composed.bus
    with torch.inference_mode():
        before = task.right(bus(h)[0], rows, bus.labels)
        z = bus.layout.narrow(bus.norm(h))
        logits = expert_logits(student, bus.layout.narrow(h), z, classifier)
        after = task.right(logits, rows, labels)
    told = [{**by_domain(x, rows), "overall": float(x.mean())} for x in (before, after)]
    return told[0], told[1]


def _size(module: torch.nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def _write(
    project: Path,
    composed: Composed,
    student: Expert,
    parts: Parts,
    merged: Merged,
    *,
    encode: Encode,
    settings: DistillSettings,
) -> None:
    """Write the project: manifest, weights, a card of the inputs with the teacher's labels."""
    summary = f"{len(composed.bus.ids)} experts merged into one"
    write_project(project, kind="expert", package_id=merged.id, summary=summary)
    backbone = composed.backbone
    write_plan(project, ExpertPlan(id=merged.id, backbone=backbone.name, writes=student.space))
    members = " ".join(composed.bus.ids)
    save_expert(
        package_in(project),
        expert=student,
        expert_id=merged.id,
        backbone=BackboneRef(name=backbone.name, fingerprint=composed.fingerprint),
        width=backbone.width,
        domain=f"all of {members}",
        card=texts_card(parts.card_rows),
        canary=_z(composed, encode, [r.text for r in parts.train[:CANARIES]]),
        off_domain=measure_off_domain(
            student, merged.id, backbone, composed.background, read=partial(_z, composed, encode)
        ),
        training=Training(
            data=_digest(parts),
            seed=settings.seed,
            epochs=merged.epoch,
            metrics={"kl": merged.kl, "agreement": merged.agreement},
            versions=library_versions(),
            note=f"distilled from generation {composed.generation}: {members}",
        ),
    )


def _z(composed: Composed, encode: Encode, texts: Sequence[str]) -> Tensor:
    return composed.bus.layout.narrow(composed.bus.norm(encode(texts)))


def _digest(parts: Parts) -> str:
    texts = [r.text for r in (*parts.train, *parts.valid)]
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()
