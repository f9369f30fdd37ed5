"""What a PAC-Bayes bound says of a flat fold, and from how many texts on it says anything.

The bound behind sharpness-aware minimisation (Foret and others 2021, arXiv 2010.01412, theorem 2;
in the form of Maurer 2004, arXiv cs/0411099): with probability 1 − δ over the n texts learnt from,
a fold whose weights w take a Gaussian step errs on new texts at most so much more than on those:

    √((KL + ln(2 √n / δ)) / 2n),   KL = Σ over tensors of ‖w‖² / 2σ²

The prior is drawn around zero with the step's own variance. A step of length s ‖w‖ has
σ² = s² ‖w‖² / d in a tensor of d numbers, so KL = d / 2s² whatever the weights are: flatness helps
by allowing a long step, and what it has to make up for is the number of weights.
"""

from __future__ import annotations

import math

__all__ = ["excess", "texts_needed"]

DELTA = 0.05


def excess(*, numbers: int, step: float, texts: int) -> float:
    """Return the most that errors on new texts exceed those on the ones learnt from.

    Args:
        numbers: d, all weights of the fold.
        step: s, a random step's length as a share of each tensor's own.
        texts: n.
    """
    divergence = numbers / (2 * step**2)
    return math.sqrt((divergence + math.log(2 * math.sqrt(texts) / DELTA)) / (2 * texts))


def texts_needed(*, numbers: int, step: float) -> int:
    """Return the least n of which the bound is below 1: with fewer it allows every error."""
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
