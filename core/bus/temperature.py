"""T of softmax(logits / T), fitted to rows that were not trained on (Guo et al. 2017)."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

Loss = Callable[[Tensor, Tensor], Tensor]
"""Logits ``(N, L)`` and their targets → the mean loss."""

TEMPERATURES = (0.05, 20.0)
"""Smallest and largest fitted T."""

HALVINGS = 60
"""Steps of a search for T; enough for float precision."""

ONE_IN_TWENTY = 3.841
"""The 95 % quantile of χ² with one degree of freedom."""


def fit_temperature(logits: Tensor, targets: Tensor, *, loss: Loss = cross_entropy) -> float:
    """Return the T with the smallest loss of logits / T, which is a cross-entropy.

    The loss is convex in 1/T, so a golden-section search over log T finds the minimum.

    Args:
        logits: Logits ``(N, L)`` of rows that were not trained on.
        targets: Their targets, ``(N,)`` for one of L labels, ``(N, L)`` for label sets.
        loss: Logits and targets → the mean loss.

    Returns:
        T, within [0.05, 20].
    """
    # Over log T rather than T: both ends of the range are equally far from 1.
    ratio = (math.sqrt(5) - 1) / 2
    low, high = (math.log(x) for x in TEMPERATURES)

    def at(log_t: float) -> float:
        return float(loss(logits.double() / math.exp(log_t), targets))

    with torch.inference_mode():
        for _ in range(HALVINGS):
            # Both inner points anew: one loss more each step, and no state to get wrong.
            a, b = high - ratio * (high - low), low + ratio * (high - low)
            if at(a) <= at(b):
                high = b
            else:
                low = a
    return math.exp((low + high) / 2)


def shown_temperature(logits: Tensor, targets: Tensor, *, loss: Loss = cross_entropy) -> float:
    """Return the T nearest to 1 that a likelihood-ratio test on the rows does not reject.

    T is rejected if 2 N (loss at T - smallest loss) exceeds the 95 % quantile of χ² with one degree
    of freedom (Wilks 1938). So few rows change T little, and so do rows that are all correct, for
    which the maximum-likelihood T would be the smallest allowed value.

    Args:
        logits: Logits ``(N, L)`` of rows that were not trained on.
        targets: Their targets, ``(N,)``.
        loss: Logits and targets → the mean loss.

    Returns:
        T, within [0.05, 20].
    """

    def at(log_t: float) -> float:
        return float(loss(logits.double() / math.exp(log_t), targets))

    likeliest = math.log(fit_temperature(logits, targets, loss=loss))
    most, refuted = at(likeliest) + ONE_IN_TWENTY / (2 * len(logits)), 0.0
    if at(refuted) <= most:  # log T = 0 is not rejected
        return 1.0
    for _ in range(HALVINGS):
        middle = (likeliest + refuted) / 2
        if at(middle) <= most:
            likeliest = middle
        else:
            refuted = middle
    return math.exp(likeliest)
