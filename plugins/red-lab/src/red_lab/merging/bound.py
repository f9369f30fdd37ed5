"""A PAC-Bayes bound for a flat fold, and the number of texts from which it is informative.

The bound behind sharpness-aware minimisation (Foret and others 2021, arXiv 2010.01412, theorem 2;
in the form of Maurer 2004, arXiv cs/0411099): with probability 1 − δ over the n training texts, the
error of a fold whose weights w take a Gaussian step is larger on new texts by at most

    √((KL + ln(2 √n / δ)) / 2n),   KL = Σ over tensors of ‖w‖² / 2σ²

The prior is centred at zero and has the variance of the step. A step of length s ‖w‖ has
σ² = s² ‖w‖² / d in a tensor of d numbers, so KL = d / 2s² for any weights: flatness helps by
allowing a long step, and the bound grows with the number of weights.
"""

from __future__ import annotations

import math

__all__ = ["excess", "texts_needed"]

DELTA = 0.05


def excess(*, numbers: int, step: float, texts: int) -> float:
    """Return the bound on the excess of the error on new texts over that on training texts.

    Args:
        numbers: d, the number of weights of the fold.
        step: s, a random step's length as a share of each tensor's norm.
        texts: n.
    """
    divergence = numbers / (2 * step**2)
    return math.sqrt((divergence + math.log(2 * math.sqrt(texts) / DELTA)) / (2 * texts))


def texts_needed(*, numbers: int, step: float) -> int:
    """Return the smallest n for which the bound is below 1; with fewer it allows every error."""
    low, high = 1, 2
    while excess(numbers=numbers, step=step, texts=high) >= 1:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if excess(numbers=numbers, step=step, texts=middle) >= 1:
            low = middle
        else:
            high = middle
    return high
