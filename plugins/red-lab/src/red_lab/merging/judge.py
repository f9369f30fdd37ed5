"""Answers of one expert at weight 1, as a head on h or as an adapter in the blocks."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

import redhost
from red_lab.merging.subjects import Subject
from redhost.core.backbones.interventions import InTrunk
from redhost.core.backbones.interventions.layout import bus_part, inside_reader

__all__ = ["alone", "hits", "moved", "right", "size"]


def alone(expert: redhost.Expert, subject: Subject, texts: Sequence[str]) -> Tensor:
    """Return log p ``(N, L)`` of texts, over the backbone's labels or over the expert's own."""
    backbone, h = subject.context.backbone, subject.context.encode(texts)
    norm = redhost.plugins.LayerNorm(width=backbone.width, eps=backbone.eps)
    read = (
        inside_reader(backbone, "alone", expert)(texts) if isinstance(expert, InTrunk) else norm(h)
    )
    with torch.inference_mode():
        logits = bus_part(expert, backbone).logits(h, read, backbone.classifier)
        return torch.log_softmax(logits, dim=-1)


def hits(expert: redhost.Expert, subject: Subject) -> list[float]:
    """Return which test rows an expert alone answers correctly."""
    names = expert.labels if expert.space == "labels" else subject.context.backbone.labels
    return right(alone(expert, subject, [r.text for r in subject.test]), names, subject)


def right(scores: Tensor, names: Sequence[str], subject: Subject) -> list[float]:
    """Return for which test rows the correct label has the largest of the scores ``(N, L)``."""
    best = scores.argmax(-1).tolist()
    return [float(names[k] == r.label) for k, r in zip(best, subject.test, strict=True)]


def size(module: nn.Module) -> int:
    """Return the number of parameters of a module."""
    return sum(p.numel() for p in module.parameters())


def moved(expert: redhost.Expert, *, length: float, seed: int) -> redhost.Expert:
    """Return a copy of an expert with a Gaussian step added to each tensor.

    Args:
        expert: The expert, which is not changed.
        length: Length of the step as a share of the tensor's norm (Li et al. 2018 do the same for
            each filter).
        seed: Random seed of its direction.
    """
    other, generator = copy.deepcopy(expert), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in other.parameters():
            step = torch.randn(p.shape, generator=generator)
            p.add_(step * (length * p.norm() / step.norm().clamp_min(torch.finfo(p.dtype).tiny)))
    return other
