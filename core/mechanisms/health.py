"""Routing health: numbers for the three ways in which a mixture fails.

    collapse             usage entropy  H(u) / log E,   u = mean row of the weights
                         load imbalance std(u) / mean(u), dead experts u_i < floor
    no specialisation    mean over pairs of ‖f_i(x) − f_j(x)‖ / mean ‖f_i(x)‖
    thrashing            share of assignments that changed between two passes

Source: seed 003, section "Expert Specialization vs Collapse", whose table names remedies and no
measure; the coefficient of variation is Shazeer et al. 2017, equation 7. All are pure functions of
weights ``(N, E)``, outputs ``(E, N, D)`` and assignments ``(N,)`` or ``(N, k)``. Of no rows, or of
no pair, nothing can be said: NaN.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = [
    "assignment_flip_rate",
    "dead_experts",
    "load_imbalance",
    "pairwise_output_distance",
    "usage",
    "usage_entropy",
]

_MATRIX, _CUBE = 2, 3


def usage(weights: Tensor) -> Tensor:
    """Return the share of each expert, ``(E,)`` in float64, summing to 1.

    Args:
        weights: Each row's weights, ``(N, E)``; at least 0, in any unit.

    Raises:
        ValueError: Another shape.
    """
    if weights.dim() != _MATRIX:
        raise ValueError(f"usage takes weights (N, E), found shape {tuple(weights.shape)}")
    total = weights.detach().double().sum(dim=0)
    return total / total.sum()


def usage_entropy(weights: Tensor) -> float:
    """Return H(usage) / log E: 1 for equal shares, 0 at collapse; 1 for a single expert.

    Args:
        weights: ``(N, E)``.
    """
    share = usage(weights)
    entropy = -float(torch.special.xlogy(share, share).sum())
    if math.isnan(entropy) or len(share) == 1:
        return entropy + 1
    return min(1.0, max(0.0, entropy / math.log(len(share))))  # rounding leaves the interval


def load_imbalance(weights: Tensor) -> float:
    """Return the coefficient of variation of the usage: 0 for equal shares, √(E − 1) at collapse.

    Args:
        weights: ``(N, E)``.
    """
    share = usage(weights)
    return float(share.std(correction=0) / share.mean())


def dead_experts(weights: Tensor, *, floor: float = 0.01) -> tuple[int, ...]:
    """Return the columns whose usage is below a floor, in order.

    Args:
        weights: ``(N, E)``.
        floor: In shares of the whole, 0 … 1.
    """
    return tuple(i for i, share in enumerate(usage(weights).tolist()) if share < floor)


def pairwise_output_distance(outputs: Tensor) -> float:
    """Return how far two experts' answers to a row are apart, in units of an answer's norm.

    0 for copies, √2 for orthogonal answers of equal norm, 2 for opposite ones.

    Args:
        outputs: Every expert's answer to every row, ``(E, N, D)``.

    Raises:
        ValueError: Another shape.
    """
    if outputs.dim() != _CUBE:
        raise ValueError(f"outputs are (E, N, D), found shape {tuple(outputs.shape)}")
    by_row = outputs.detach().double().transpose(0, 1)  # (N, E, D)
    one, other = torch.triu_indices(len(outputs), len(outputs), offset=1)
    exact = "donot_use_mm_for_euclid_dist"  # copies are 0 apart, and no pair needs D numbers
    distance = torch.cdist(by_row, by_row, compute_mode=exact)[:, one, other].mean()
    # Answers that are all 0 are copies of each other.
    return float(distance / by_row.norm(dim=-1).mean()) if distance else 0.0


def assignment_flip_rate(before: Tensor, after: Tensor) -> float:
    """Return the share of assignments that are gone: 0 when nothing moved, 1 when all did.

    Args:
        before: The experts of each row, ``(N,)`` or ``(N, k)``; their order in a row is no matter.
        after: Those of the same rows later, of the same shape.

    Raises:
        ValueError: The shapes differ.
    """
    if before.shape != after.shape:
        raise ValueError(
            f"assignments of shape {tuple(before.shape)} are compared with their like, "
            f"found shape {tuple(after.shape)}"
        )
    old, new = (a.unsqueeze(1) if a.dim() == 1 else a for a in (before, after))
    kept = (old.unsqueeze(2) == new.unsqueeze(1)).any(dim=2)  # (N, k)
    return 1 - float(kept.double().mean())
