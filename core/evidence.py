"""The experts' own evidence: how much each wants to have a say, as one number a row.

    e_i(z) = ‖W_c Δ_i(z)‖             where the expert writes to the shared classifier
    e_i(z) = logsumexp_y Δ_i(z)_y / T   where it has labels of its own (the energy score,
                                        Liu et al. 2020)
    e_i(z) = 0                         where it answers a number of its own
    e      = 0                         for the backbone column

Trained to leave other domains alone, an expert is quiet off its own (small ‖W_c Δ‖), so its
voice says whose input this is even where z alone does not.

`outputs` tells more of the same logits ℓ = W_c Δ_i or Δ_i / T, S numbers for each expert: the
voice, the largest entry, the spread over labels and the entropy of softmax(ℓ) (1 when uniform).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .experts import Expert

__all__ = ["LOOKS", "ear_of", "off_domain", "outputs", "voice_of"]

LOOKS = 4
"""S, how many numbers tell what an expert's output looks like."""


def ear_of(classifier: Tensor | None) -> Tensor | None:
    """Return what measures ‖W_c Δ‖ at the least cost: W_c, or R ``(D, D)`` with RᵀR = W_cᵀW_c.

    A vocabulary has many more rows than D; ‖R Δ‖ is the same number for D² products.
    """
    if classifier is None or classifier.shape[0] <= classifier.shape[1]:
        return classifier
    gram = (classifier.T @ classifier).to(torch.float64)
    values, vectors = torch.linalg.eigh(gram)
    root: Tensor = values.clamp_min(0).sqrt()[:, None] * vectors.T
    return root.to(classifier.dtype)


def voice_of(expert: Expert, delta: Tensor, classifier: Tensor | None) -> Tensor:
    """Return e_i ``(B,)`` of what an expert says.

    Args:
        expert: The expert.
        delta: Δ ``(B, out)``.
        classifier: W_c ``(C, D)``, or its ear; None where all experts have labels of their own.
    """
    logits = _logits(expert, delta, classifier)
    return delta.new_zeros(delta.shape[0]) if logits is None else _loudness(expert, logits)


def off_domain(expert: Expert, z: Tensor, classifier: Tensor | None) -> Tensor:
    """Return mean ‖logits that Δ adds‖² over rows ``(B, D)``: W_c Δ(z), or Δ(z) itself.

    Args:
        expert: The expert.
        z: What it reads, ``(B, D)``.
        classifier: W_c ``(C, D)``, or its ear (`ear_of`).
    """
    delta: Tensor = expert(z)
    if expert.space == "hidden" and classifier is not None:
        delta = delta @ classifier.T
    return delta.square().sum(-1).mean()


def outputs(
    experts: Sequence[Expert],
    z: Tensor | Sequence[Tensor],
    *,
    classifier: Tensor | None,
    columns: int,
) -> Tensor:
    """Return what the experts' outputs look like, ``(B, K, S)``; zeros for the backbone column.

    Args:
        experts: In column order, E of them.
        z: Bus vectors ``(B, D)``, or what each expert reads.
        classifier: W_c ``(C, D)``; None where all experts have labels of their own.
        columns: K.
    """
    readings = _readings(experts, z)
    looks = readings[0].new_zeros(readings[0].shape[0], columns, LOOKS)
    for i, (expert, read) in enumerate(zip(experts, readings, strict=True)):
        logits = _logits(expert, expert(read), classifier)
        if logits is not None:
            looks[:, i] = _look(logits, _loudness(expert, logits))
    return looks


def _readings(experts: Sequence[Expert], z: Tensor | Sequence[Tensor]) -> Sequence[Tensor]:
    return [z] * len(experts) if isinstance(z, Tensor) else z


def _look(logits: Tensor, voice: Tensor) -> Tensor:
    """Return ``(B, S)`` for logits ``(B, L)``; a single one has no entropy and no spread."""
    log_p = torch.log_softmax(logits, dim=-1)
    entropy = -(log_p.exp() * log_p).sum(-1) / math.log(max(logits.shape[-1], 2))
    spread = logits.std(-1, correction=0)
    return torch.stack([voice, logits.amax(-1), spread, entropy], dim=-1)


def _loudness(expert: Expert, logits: Tensor) -> Tensor:
    if expert.space == "labels":
        return torch.logsumexp(logits, dim=-1)
    return logits.square().sum(-1).sqrt()


def _logits(expert: Expert, delta: Tensor, classifier: Tensor | None) -> Tensor | None:
    """Return ℓ ``(B, L)`` of Δ ``(B, out)``; None for a number of the expert's own."""
    if expert.space == "labels":
        return None if delta.shape[-1] == 1 else delta / expert.temperature
    if expert.space == "hidden" and classifier is not None:
        return delta @ classifier.T
    return delta
