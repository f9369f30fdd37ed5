"""Measures of mixture collapse; the host itself measures entropy, distance and flips.

Source: seed 003, section "Expert Specialization vs Collapse"; the coefficient of variation is
Shazeer et al. 2017, equation 7. For an empty batch the usage is NaN.
"""

from __future__ import annotations

from torch import Tensor

from redhost.core.evaluation.routing_health import (
    assignment_flip_rate,
    pairwise_output_distance,
    usage,
    usage_entropy,
)

__all__ = [
    "assignment_flip_rate",
    "dead_experts",
    "load_imbalance",
    "pairwise_output_distance",
    "usage",
    "usage_entropy",
]


def load_imbalance(weights: Tensor) -> float:
    """Return the coefficient of variation of the usage: 0 for equal usage, √(E − 1) at collapse.

    Args:
        weights: ``(N, E)``.
    """
    share = usage(weights)
    return float(share.std(correction=0) / share.mean())


def dead_experts(weights: Tensor, *, floor: float = 0.01) -> tuple[int, ...]:
    """Return the columns whose usage is below a floor, in order.

    Args:
        weights: ``(N, E)``.
        floor: A fraction of the total usage, 0 … 1.
    """
    return tuple(i for i, share in enumerate(usage(weights).tolist()) if share < floor)
