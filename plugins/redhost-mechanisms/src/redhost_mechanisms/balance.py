"""Load balancing loss: a penalty on gates that route everything to one expert.

    L = c · E · Σ_i f_i P_i

f_i is the fraction of assignments to expert i, P_i its mean probability. f is counted, so only P
has a gradient, which lowers the probability of an expert in proportion to its load. L is c if both
are uniform, and approaches c·E at collapse.

Source: seed 003, section "Load Balancing Loss"; Fedus et al. 2021, "Switch Transformer", equations
4 to 6, here for any k.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["load_balancing_loss"]


def load_balancing_loss(
    probabilities: Tensor, indices: Tensor, *, coefficient: float = 0.01
) -> Tensor:
    """Return c · E · Σ f_i P_i, a scalar; 0 for an empty batch.

    Args:
        probabilities: The gate's softmax over all experts, ``(..., E)``.
        indices: The experts that were chosen, ``(..., k)``, int64 in 0 … E−1.
        coefficient: c, at least 0.

    Raises:
        ValueError: The two tensors have different rows, or an index is out of range.
    """
    experts = probabilities.shape[-1]
    if probabilities.shape[:-1] != indices.shape[:-1]:
        raise ValueError(
            f"load_balancing_loss: probabilities are of rows {tuple(probabilities.shape[:-1])}, "
            f"found indices of rows {tuple(indices.shape[:-1])}"
        )
    p = probabilities.reshape(-1, experts)
    counts = torch.bincount(indices.flatten(), minlength=experts)
    if len(counts) != experts:
        raise ValueError(
            f"load_balancing_loss: {experts} experts, found the index {len(counts) - 1}"
        )
    # Dividing by at least 1 makes the loss of an empty batch 0 instead of NaN.
    share = counts / max(indices.numel(), 1)
    mean = p.sum(dim=0) / max(len(p), 1)
    return coefficient * experts * (share.to(mean) * mean).sum()
