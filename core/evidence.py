"""The experts' own evidence: how much each wants to have a say, as one number a row.

    e_i(z) = ‖W_c Δ_i(z)‖             where the expert writes to the shared classifier
    e_i(z) = logsumexp_y Δ_i(z)_y / T   where it has labels of its own (the energy score,
                                        Liu et al. 2020)
    e_i(z) = 0                         where it answers a number of its own
    e      = 0                         for the backbone column

Trained to leave other domains alone, an expert is quiet off its own (small ‖W_c Δ‖), so its
voice says whose input this is even where z alone does not.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .experts import Expert

__all__ = ["evidence"]


def evidence(
    experts: Sequence[Expert], z: Tensor, *, classifier: Tensor | None, columns: int
) -> Tensor:
    """Return e(z), ``(B, K)``.

    Args:
        experts: In column order, E of them.
        z: Bus vectors ``(B, D)``.
        classifier: W_c ``(C, D)``; None where all experts have labels of their own.
        columns: K; columns past the experts' have no evidence.
    """
    voices = z.new_zeros(z.shape[0], columns)
    for i, expert in enumerate(experts):
        voices[:, i] = _voice(expert, z, classifier)
    return voices


def _voice(expert: Expert, z: Tensor, classifier: Tensor | None) -> Tensor:
    delta: Tensor = expert(z)
    if expert.space == "labels" and delta.shape[-1] == 1:
        return delta.new_zeros(delta.shape[0])
    if expert.space == "labels":
        return torch.logsumexp(delta / expert.temperature, dim=-1)
    if expert.space == "hidden" and classifier is not None:
        delta = delta @ classifier.T
    return delta.square().sum(-1).sqrt()
