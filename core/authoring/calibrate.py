"""Calibration: one temperature for each expert with labels of its own, fitted by its author.

p_i(y|x) = softmax(Δ_i / T): T is fitted on rows the expert never trained on and stands in the
manifest ever after, so that one over-confident expert does not win a mixture.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

__all__ = ["fit_temperature"]

RANGE = (0.05, 20.0)


def fit_temperature(logits: Tensor, targets: Tensor, *, steps: int = 60) -> float:
    """Return the T with the smallest cross-entropy of softmax(logits / T).

    The loss is convex in 1/T, so a golden-section search over log T finds it.

    Args:
        logits: ``(N, L)``, of rows that were not trained on.
        targets: ``(N,)``.
        steps: Halvings of the search; 60 reach float precision.

    Returns:
        T, within [0.05, 20].
    """
    ratio = (math.sqrt(5) - 1) / 2
    low, high = (math.log(x) for x in RANGE)

    def loss(log_t: float) -> float:
        scaled = logits.double() / math.exp(log_t)
        return float(nn.functional.cross_entropy(scaled, targets))

    with torch.inference_mode():
        for _ in range(steps):
            a, b = high - ratio * (high - low), low + ratio * (high - low)
            if loss(a) <= loss(b):
                high = b
            else:
                low = a
    return math.exp((low + high) / 2)
