"""Train one expert alone: its own column at 1, everything else frozen.

    loss = CE(p(y|x), y) + λ · mean over background of ‖logits that Δ adds‖²

with p through the frozen classifier, softmax(W_c (h + Δ(z))), or over labels of the expert's own,
softmax(Δ(z)). The second term teaches the expert to leave other people's inputs alone, which
makes Proposition 3's small residuals (seed 000) true off the expert's domain by training, and
routing errors cheap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ...registry.errors import UsageError
from ...registry.forms import FORMS
from ..evidence import ear_of
from ..experts import Expert, expert_of
from ..progress import Progress
from ..tasks import Classification, Task, Units
from .expert_run import Batch, ExpertRun, ExpertSettings, TrainedExpert

__all__ = ["Rows", "init_expert", "train_expert"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Rows:
    """Features with their labels: h ``(N, D)`` and N answers.

    `z` ``(N, D)`` is what the expert reads, where that is not LayerNorm(h).
    """

    h: Tensor
    answers: Sequence[str]
    z: Tensor | None = None


def init_expert(settings: ExpertSettings, *, width: int, out: int, labels: Sequence[str]) -> Expert:
    """Return an untrained expert: V (or W) starts at zero, so it changes nothing.

    Args:
        settings: Form, space, rank, activation and seed.
        width: D.
        out: Width of what it writes: D, C or its own number of labels.
        labels: The labels it may answer.

    Raises:
        UsageError: If the form is not one that can be trained here.
    """
    generator = torch.Generator().manual_seed(settings.seed)
    space, rank = settings.space, settings.rank or max(1, width // 4)
    if settings.form not in FORMS:
        raise UsageError(f"form {settings.form!r} cannot be trained", expected=", ".join(FORMS))
    shapes = FORMS[settings.form].shapes(space, width=width, rank=rank, out=out)
    tensors = {name: torch.zeros(shape) for name, shape in shapes.items()}
    if "U" in tensors:
        tensors["U"] = torch.randn(shapes["U"], generator=generator) / width**0.5
    return expert_of(tensors, space=space, activation=settings.activation, labels=labels)


def train_expert(
    rows: Rows,
    *,
    norm: Callable[[Tensor], Tensor],
    classifier: Tensor | None,
    labels: Sequence[str],
    domain_labels: Sequence[str],
    settings: ExpertSettings,
    task: Task | None = None,
    valid: Rows | None = None,
    background: Tensor | None = None,
    background_z: Tensor | None = None,
    checkpoint: Path | None = None,
    progress: Progress | None = None,
) -> TrainedExpert:
    """Train an expert on its domain's rows.

    Args:
        rows: What it learns.
        norm: The bus norm, h → z.
        classifier: W_c ``(C, D)``, frozen; not needed for labels of its own.
        labels: The classifier's labels.
        domain_labels: The labels the expert may answer, in the order of its own logits.
        settings: How.
        task: Classes or a number; a number is learnt in units of the targets' spread.
        valid: Rows to stop early on; without them the last epoch is taken.
        background: Features to leave alone, ``(M, D)``.
        background_z: What the expert reads of them, where that is not LayerNorm(h).
        checkpoint: Written now and then; training goes on from it where it exists.
        progress: Called with (epochs done, epochs in all).

    Raises:
        UsageError: If an answer is not among the labels it can have.
    """
    own, task = settings.space == "labels", task or Classification()
    names = domain_labels if own else labels
    out = rows.h.shape[1] if settings.space == "hidden" else len(names)
    expert = init_expert(settings, width=rows.h.shape[1], out=out, labels=domain_labels)
    steps = settings.epochs * -(-len(rows.h) // settings.batch)
    run = ExpertRun(expert, settings, task=task, steps=steps)
    shared = None if own else classifier
    units = task.units(task.targets(rows.answers, names), classifier=shared)
    classifier = None if classifier is None else classifier * (units.hidden / units.scale)
    data = _batch(rows, norm, names, task=task, units=units)
    judged = None if valid is None else _batch(valid, norm, names, task=task, units=units)
    others = None
    if background is not None and len(background):
        others = norm(background) if background_z is None else background_z
    product = classifier.bfloat16() if settings.half and classifier is not None else classifier
    ear = None if others is None else ear_of(classifier)
    for _ in run.epochs(checkpoint, progress):
        run.pass_over(data, classifier=product, ear=ear, background=others)
        run.judge(judged, classifier=classifier)
    return run.finish(judged is not None, units=units)


def _batch(
    rows: Rows, norm: Callable[[Tensor], Tensor], names: Sequence[str], *, task: Task, units: Units
) -> Batch:
    z = norm(rows.h) if rows.z is None else rows.z
    return Batch(rows.h / units.hidden, z, units.of(task.targets(rows.answers, names)))
