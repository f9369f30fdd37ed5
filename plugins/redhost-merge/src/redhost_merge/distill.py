"""Distil a composition into one expert of fixed cost, as a project that can be packed and shipped.

    loss = mean_n Σ_y p_T(y|x_n) log( p_T(y|x_n) / p_S(y|x_n) )            Hinton et al. 2015

The teacher is the routed composition, frozen; the student learns from its answers to unlabelled
inputs. With sharpness ρ > 0, gradients are computed where the loss is largest within distance ρ of
the weights (sharpness-aware minimisation, Foret et al. 2021).

The student writes hidden states if all experts of the composition share the backbone's classifier.
Otherwise it has labels of its own: all labels of the bus. The experts, the router and the
generation are not changed.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec
import torch
from redhost_author.new_folder import making
from redhost_author.project import (
    ExpertPlan,
    check_free,
    check_id,
    write_plan,
    write_project,
)
from redhost_author.training.data import DataSplits, split_rows
from redhost_author.training.expert import ExpertRun, ExpertSettings, init_expert
from redhost_author.training.packaging import ExpertDraft, save_expert, texts_card
from redhost_author.versions import library_versions
from torch import Tensor

from redhost.core.bus.experts import Expert, Space
from redhost.core.bus.task import CLASSIFICATION
from redhost.core.label_sets import DECLINED
from redhost.core.model.composed import ComposedModel, by_domain
from redhost.core.model.verify import measure_off_domain
from redhost.core.routers.cards import gate_rows
from redhost.core.types import Encode, Progress, Row
from redhost.registry.errors import HarmError, UsageError
from redhost.registry.package.manifest import BackboneRef, Training

FEWEST_INPUTS = 16
"""Fewest inputs that can be split into training and held-out rows."""

TOLERANCE = 10.0
"""Points that a domain may lose, since one small expert has less capacity than several."""

CANARIES = 8
"""Most vectors in the merged expert's canary."""


@dataclass(frozen=True, kw_only=True)
class DistillSettings:
    """How a student is trained, and for which question.

    Attributes:
        rank: R of the student; None for a quarter of D.
        epochs: Passes over the inputs.
        batch: Rows a step.
        learning_rate: Peak of AdamW, decayed to zero along a cosine.
        weight_decay: AdamW's.
        sharpness: ρ, the radius of sharpness-aware steps; 0 for plain ones.
        patience: Epochs without a smaller validation loss before training stops.
        seed: Seed of initial weights and order of rows.
        question: The question of composition and student; None for the default question.
    """

    rank: int | None = None
    epochs: int = 200
    batch: int = 128
    learning_rate: float = 2e-3
    weight_decay: float = 0.01
    sharpness: float = 0.0
    patience: int = 20
    seed: int = 0
    question: str | None = None


OWN = frozenset({"sharpness", "question"})
"""Settings that `ExpertSettings` does not have."""


class Merged(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a merge, compared with the composition.

    Attributes:
        id: The merged expert's id.
        generation: The generation that was distilled.
        rows: Number of inputs it learnt from.
        declined: Number of inputs left out because the composition declines them.
        kl: Mean KL(composition ‖ merged) on held-out inputs, nats.
        agreement: Share of held-out inputs with the same label from both, 0–1.
        before: The composition's accuracy on the cards' gate rows, by domain and ``overall``.
        after: The merged expert's accuracy on them, alone at weight 1.
        parameters: Numbers of parameters of the ``composition`` (experts and router) and of the
            ``merged`` expert.
        epoch: The epoch of its weights.
        gate_rows: Number of gate rows, by domain and ``overall``.
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
    gate_rows: dict[str, int] = {}

    def refuse_loss(self, *, tolerance: float | None = None) -> None:
        """Refuse a merge by which a domain loses more than the tolerance; the project is kept.

        If no card has gate rows, the agreement on held-out inputs is checked instead.

        Args:
            tolerance: In points of accuracy or agreement; None is ten points or two gate rows,
                whichever is larger.

        Raises:
            HarmError: If a domain loses more.
        """
        compared = {d: (x, self.after[d], self.gate_rows[d]) for d, x in self.before.items()}
        compared = compared or {"inputs set aside": (1.0, self.agreement, self.rows)}
        for domain, (before, after, rows) in compared.items():
            allowed = max(TOLERANCE / 100, 2 / rows) if tolerance is None else tolerance / 100
            if before - after > allowed + 1e-9:
                lost = f"{100 * (before - after):.1f} points"
                raise HarmError(
                    f"merged into {self.id!r}, {domain!r} loses {lost}",
                    expected=f"at most {100 * allowed:.1f}",
                    found=f"{before:.3f} before, {after:.3f} after, learnt from {self.rows} inputs",
                    hint="The project is kept, to look at. Give more texts of the experts' domains "
                    "with --data FILE, take more --epochs or a larger --rank, or accept it with "
                    "--tolerance POINTS.",
                )


def merge(
    composed: ComposedModel,
    texts: Sequence[str],
    *,
    expert_id: str,
    project: Path,
    encode: Encode,
    settings: DistillSettings,
    progress: Progress | None = None,
) -> Merged:
    """Distil a composition into a new project; nothing else is changed.

    Args:
        composed: The teacher.
        texts: Unlabelled inputs.
        expert_id: Id of the merged expert.
        project: The project's folder, which must not exist.
        encode: Texts → h ``(N, D)``.
        settings: How the student is trained.
        progress: Called with (epochs done, epochs in all).

    Raises:
        UsageError: If the folder exists, the task is not classification, or there are too few
            inputs.
    """
    bus = composed.bus
    check_id(expert_id)
    check_free(project)
    if not bus.task.one_label:
        found = f"a bus that answers {bus.task.head.noun}"
        raise UsageError("merge folds answers that are labels", found=found)
    labels = tuple(y for y in bus.labels if y != DECLINED)
    rows, declined = _answered(composed, texts, encode)
    splits = split_rows(rows)
    data, valid, held_out = (
        _batch(composed, some, labels, encode)
        for some in (splits.train, splits.valid, (*splits.fit, *splits.gate))
    )
    student = _student(composed, labels, settings)
    classifier = None if bus.own else bus.classifier
    epoch = distill(
        student, data, valid, classifier=classifier, settings=settings, progress=progress
    )
    answers = student.logits(held_out.h, held_out.z, classifier).argmax(-1)
    before, after, counts = _accuracies(composed, student, classifier, labels, encode)
    merged = Merged(
        id=expert_id,
        generation=composed.generation,
        rows=len(splits.train),
        declined=declined,
        kl=float(divergence(student, held_out, classifier)),
        agreement=float((answers == held_out.p.argmax(-1)).double().mean()),
        before=before,
        after=after,
        parameters={
            "composition": _size(bus.experts) + _size(bus.router),
            "merged": _size(student),
        },
        epoch=epoch,
        gate_rows=counts,
    )
    with making(project):
        _write(project, composed, student, splits, merged, encode=encode, settings=settings)
    return merged


def _student(composed: ComposedModel, labels: tuple[str, ...], settings: DistillSettings) -> Expert:
    """Return the untrained student: it has labels of its own if any expert does."""
    own, width = bool(composed.bus.own), composed.backbone.width
    space: Space = "labels" if own else "hidden"
    out = len(labels) if own else width
    return init_expert(_expert_settings(settings, space), width=width, out=out, labels=labels)


def own_texts(composed: ComposedModel) -> list[str]:
    """Return the texts that are part of the composition: fit rows of its cards, and background.

    Raises:
        UsageError: If a card has no texts, so that nothing could be learnt about its domain.
    """
    cards = {i: [r.text for r in c.rows if r.part == "fit"] for i, c in composed.cards.items()}
    if mute := [i for i, texts in cards.items() if not texts]:
        raise UsageError(
            "there is nothing to learn some domains from",
            expected="a card of texts of each expert",
            found=f"none of {', '.join(mute[:5])}",
            hint="Give unlabelled texts of the experts' domains with --data FILE.",
        )
    return [*(t for texts in cards.values() for t in texts), *(r.text for r in composed.background)]


@dataclass(frozen=True, kw_only=True, eq=False)
class DistillationBatch:
    """Inputs with the teacher's probabilities: h ``(N, D)``, z ``(N, D)`` and p_T ``(N, L)``."""

    h: Tensor
    z: Tensor
    p: Tensor


def distill(
    student: Expert,
    data: DistillationBatch,
    valid: DistillationBatch,
    *,
    classifier: Tensor | None,
    settings: DistillSettings,
    progress: Progress | None = None,
) -> int:
    """Train a student in place; return the epoch of its weights.

    Args:
        student: An expert that writes hidden states, or whose own labels are the teacher's.
        data: The training inputs.
        valid: The inputs for early stopping.
        classifier: W_c ``(C, D)`` if the student writes hidden states.
        settings: How to train.
        progress: Called with (epochs done, epochs in all).
    """
    run = ExpertRun(
        student.requires_grad_(True),
        _expert_settings(settings, student.space),
        head=CLASSIFICATION.head,
        rows=len(data.h),
    )
    for _ in run.epochs(None, progress):
        for rows in run.shuffled(len(data.h)):
            part = DistillationBatch(h=data.h[rows], z=data.z[rows], p=data.p[rows])
            run.descend(_losses(student, part, classifier, sharpness=settings.sharpness))
        with torch.no_grad():
            run.remember(float(divergence(student, valid, classifier)))
    return run.finish(validated=True).epoch


def _expert_settings(settings: DistillSettings, space: Space) -> ExpertSettings:
    shared = {k: v for k, v in asdict(settings).items() if k not in OWN}
    return ExpertSettings(form="residual", space=space, **shared)


def divergence(student: Expert, batch: DistillationBatch, classifier: Tensor | None) -> Tensor:
    """Return the mean KL(p_T ‖ p_S) over rows, ``()``, in nats (Hinton et al. 2015 at T = 1)."""
    log_p = torch.log_softmax(student.logits(batch.h, batch.z, classifier), dim=-1)
    each: Tensor = (torch.special.xlogy(batch.p, batch.p) - batch.p * log_p).sum(-1)
    return each.mean()


def _losses(
    student: Expert, batch: DistillationBatch, classifier: Tensor | None, *, sharpness: float
) -> Iterator[Tensor]:
    """Yield the loss at the weights; with a sharpness, also the loss at the worst point near them.

    The caller must compute each loss's gradient before the next, and step after the last.
    """
    parameters = list(student.parameters())
    yield divergence(student, batch, classifier)
    if not sharpness:
        return
    gradients = [p.grad.clone() for p in parameters if p.grad is not None]
    length = torch.stack([g.norm() for g in gradients]).norm().clamp_min(1e-12)
    weights = [p.detach().clone() for p in parameters]
    with torch.no_grad():
        for p, g in zip(parameters, gradients, strict=True):
            p.add_(g * (sharpness / length))
    student.zero_grad()  # the gradient at the weights was only used for the direction
    yield divergence(student, batch, classifier)
    with torch.no_grad():
        for p, w in zip(parameters, weights, strict=True):
            p.copy_(w)  # restores the exact bits, which subtracting would not


def _answered(
    composed: ComposedModel, texts: Sequence[str], encode: Encode
) -> tuple[list[Row], int]:
    """Return the inputs with the teacher's labels, and the number that it declines."""
    distinct = sorted(set(texts))
    _require_enough(len(distinct), found=str(len(distinct)))
    with torch.inference_mode():
        p, _ = composed.bus(encode(distinct))
    labels = [composed.bus.labels[int(i)] for i in p.argmax(-1)]
    rows = [Row(text=t, label=y) for t, y in zip(distinct, labels, strict=True) if y != DECLINED]
    declined = len(distinct) - len(rows)
    _require_enough(len(rows), found=f"{len(rows)}, and {declined} that are declined")
    return rows, declined


def _require_enough(inputs: int, *, found: str) -> None:
    if inputs < FEWEST_INPUTS:
        raise UsageError(
            "too few inputs to distil from",
            expected=f"{FEWEST_INPUTS} distinct texts or more",
            found=found,
            hint="Give unlabelled texts of the experts' domains with --data FILE.",
        )


def _batch(
    composed: ComposedModel, rows: Sequence[Row], labels: Sequence[str], encode: Encode
) -> DistillationBatch:
    """Return inputs with the teacher's probabilities, renormalised without the label `none`."""
    bus = composed.bus
    h = encode([r.text for r in rows])
    with torch.inference_mode():
        p, _ = bus(h)
        z = bus.norm(h)
    h, z = bus.layout.base(h), bus.layout.base(z)
    p = p[:, [bus.labels.index(y) for y in labels]]
    p = p / p.sum(-1, keepdim=True).clamp_min(1e-12)
    return DistillationBatch(h=h.clone(), z=z.clone(), p=p.clone())  # clones leave inference mode


def _accuracies(
    composed: ComposedModel,
    student: Expert,
    classifier: Tensor | None,
    labels: Sequence[str],
    encode: Encode,
) -> tuple[dict[str, float], dict[str, float], dict[str, int]]:
    """Return both accuracies on the cards' gate rows, by domain and overall, and row counts."""
    h, rows = gate_rows(list(composed.cards.values()), encode=encode, backbone=composed.backbone)
    if not rows:
        return {}, {}, {}
    head, bus = composed.bus.task.head, composed.bus
    with torch.inference_mode():
        before = head.right(bus(h)[0], rows, bus.labels)
        z = bus.layout.base(bus.norm(h))
        logits = student.logits(bus.layout.base(h), z, classifier)
        after = head.right(logits, rows, labels)
    one, two = ({**by_domain(x, rows), "overall": float(x.mean())} for x in (before, after))
    return one, two, {**Counter(str(r.domain) for r in rows), "overall": len(rows)}


def _size(module: torch.nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def _write(
    project: Path,
    composed: ComposedModel,
    student: Expert,
    splits: DataSplits,
    merged: Merged,
    *,
    encode: Encode,
    settings: DistillSettings,
) -> None:
    """Write the project: manifest, weights, a card of the inputs with the teacher's labels."""
    backbone, bus, members = composed.backbone, composed.bus, " ".join(composed.bus.ids)
    summary = f"{len(bus.ids)} experts merged into one"
    folder = write_project(project, kind="expert", package_id=merged.id, summary=summary)
    plan = ExpertPlan(
        id=merged.id, backbone=backbone.name, writes=student.space, question=settings.question
    )
    write_plan(project, plan)

    def read(texts: Sequence[str]) -> Tensor:
        return bus.layout.base(bus.norm(encode(texts)))

    learnt = [r.text for r in (*splits.train, *splits.valid)]
    draft = ExpertDraft(
        expert=student,
        card=texts_card(splits.card_rows),
        canary=read([r.text for r in splits.train[:CANARIES]]),
        id=merged.id,
        backbone=BackboneRef(name=backbone.name, fingerprint=composed.fingerprint),
        domain=f"all of {members}",
        off_domain=measure_off_domain(student, merged.id, backbone, composed.background, read=read),
        training=Training(
            data=hashlib.sha256("\n".join(learnt).encode()).hexdigest(),
            seed=settings.seed,
            epochs=merged.epoch,
            metrics={"kl": merged.kl, "agreement": merged.agreement},
            versions=library_versions(),
            note=f"distilled from generation {composed.generation}: {members}",
        ),
        question=settings.question,
    )
    save_expert(folder, draft)
