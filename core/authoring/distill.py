"""Distil a composition into one expert: KL(teacher ‖ student) on unlabelled inputs.

    loss = mean_n Σ_y p_T(y|x_n) log( p_T(y|x_n) / p_S(y|x_n) )            Hinton et al. 2015

The teacher is the routed composition, frozen. With a sharpness ρ > 0 every gradient is taken where
the loss is worst within ρ of the weights (sharpness-aware minimisation, Foret et al. 2021).
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..experts import Expert
from ..progress import Progress
from .expert_run import expert_logits

__all__ = ["DistillSettings", "Lesson", "distil", "divergence"]


@dataclass(frozen=True, kw_only=True)
class DistillSettings:
    """How a student learns.

    Attributes:
        rank: R of the student; None for a quarter of D.
        epochs: Passes over the inputs.
        batch: Rows a step.
        learning_rate: Peak of AdamW, decayed to zero along a cosine.
        weight_decay: AdamW's.
        sharpness: ρ, the radius of sharpness-aware steps; 0 for plain ones.
        patience: Epochs without a smaller validation loss before training stops.
        seed: Initial weights and order of rows.
    """

    rank: int | None = None
    epochs: int = 200
    batch: int = 128
    learning_rate: float = 2e-3
    weight_decay: float = 0.01
    sharpness: float = 0.0
    patience: int = 20
    seed: int = 0


@dataclass(frozen=True, kw_only=True, eq=False)
class Lesson:
    """Inputs with the teacher's answers: h ``(N, D)``, z ``(N, D)`` and p_T ``(N, L)``."""

    h: Tensor
    z: Tensor
    p: Tensor


def distil(
    student: Expert,
    lesson: Lesson,
    valid: Lesson,
    *,
    classifier: Tensor | None,
    settings: DistillSettings,
    progress: Progress | None = None,
) -> int:
    """Train a student in place; return the epoch its weights are from.

    Args:
        student: Writes to hidden states, or to labels of its own that are the teacher's.
        lesson: What it learns.
        valid: What decides when it stops.
        classifier: W_c ``(C, D)`` where it writes to hidden states.
        settings: How.
        progress: Called with (epochs done, epochs in all).
    """
    generator = torch.Generator().manual_seed(settings.seed)
    optimizer = torch.optim.AdamW(
        student.requires_grad_(True).parameters(),
        lr=settings.learning_rate,
        weight_decay=settings.weight_decay,
    )
    steps = settings.epochs * max(1, -(-len(lesson.h) // settings.batch))
    best, best_loss, best_epoch, step = copy.deepcopy(student.state_dict()), math.inf, 0, 0
    for epoch in range(1, settings.epochs + 1):
        order = torch.randperm(len(lesson.h), generator=generator)
        for rows in torch.split(order, settings.batch):
            decay = 0.5 * (1 + math.cos(math.pi * step / steps))
            optimizer.param_groups[0]["lr"] = settings.learning_rate * decay
            part = Lesson(h=lesson.h[rows], z=lesson.z[rows], p=lesson.p[rows])
            _gradient(student, part, classifier, sharpness=settings.sharpness)
            optimizer.step()
            step += 1
        with torch.no_grad():
            loss = float(divergence(student, valid, classifier))
        if loss < best_loss:
            best, best_loss, best_epoch = copy.deepcopy(student.state_dict()), loss, epoch
        if progress is not None:
            progress(epoch, settings.epochs)
        if epoch - best_epoch >= settings.patience:
            break
    student.load_state_dict(best)
    student.requires_grad_(False)
    return best_epoch


def divergence(student: Expert, lesson: Lesson, classifier: Tensor | None) -> Tensor:
    """Return the mean KL(p_T ‖ p_S) over rows, ``()``, in nats (Hinton et al. 2015 at T = 1)."""
    log_p = torch.log_softmax(expert_logits(student, lesson.h, lesson.z, classifier), dim=-1)
    each: Tensor = (torch.special.xlogy(lesson.p, lesson.p) - lesson.p * log_p).sum(-1)
    return each.mean()


def _gradient(
    student: Expert, lesson: Lesson, classifier: Tensor | None, *, sharpness: float
) -> None:
    """Set the gradients: at the weights, or at the worst point within ρ of them."""
    parameters = list(student.parameters())
    student.zero_grad()
    divergence(student, lesson, classifier).backward()  # type: ignore[no-untyped-call]
    if not sharpness:
        return
    gradients = [p.grad.clone() for p in parameters if p.grad is not None]
    length = torch.stack([g.norm() for g in gradients]).norm().clamp_min(1e-12)
    weights = [p.detach().clone() for p in parameters]
    with torch.no_grad():
        for p, g in zip(parameters, gradients, strict=True):
            p.add_(g * (sharpness / length))
    student.zero_grad()
    divergence(student, lesson, classifier).backward()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        for p, w in zip(parameters, weights, strict=True):
            p.copy_(w)  # the very bits, which subtracting would not give back
