"""Anytime-valid evidence that one generation is worse than another, or as good.

On a labelled text let D be 1 if the canary alone is right, −1 if production alone is, else 0.
On any text let C be 1 if the canary alone declines, −1 if production alone does, else 0.
A bet against a hypothesis about E[D] can be expected to grow only if the hypothesis is wrong
(Waudby-Smith and Ramdas 2023):

    not worse, E[D] ≥ 0              wealth(λ) = Π (1 − λ D)            0 < λ < 1
    declines no more, E[C] ≤ δ       wealth(λ) = Π (1 + λ (C − δ))      0 < λ < 1 / (1 + δ)
    worse by a margin, E[D] ≤ −δ     wealth(λ) = Π (1 + λ (D + δ))      0 < λ < 1 / (1 − δ)

Each is a test martingale, and so is their mean over λ, and the mean of such means over experts. By
Ville's inequality, if the hypothesis holds, the wealth ever reaches 1/a with probability a at most.
So the evidence may be checked after every text, and the test may be stopped at any time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from redhost_fleet.documents import Comparison

__all__ = ["evidence_of_declining", "evidence_of_harm", "evidence_of_no_harm", "harm_of"]

BETS = tuple((2 * n + 1) / 40 for n in range(20))
"""λ as shares of the largest, from .025 to .975."""


def evidence_of_harm(counts: Mapping[str, Comparison], *, experts: int) -> float:
    """Return the log of the evidence that the canary is worse somewhere.

    Half of the stake is on all texts, half is spread over the experts, so that harm to a single
    expert's texts is detected.

    Args:
        counts: Counts by expert.
        experts: Maximum number of experts. It must not depend on which experts had texts: if stake
            is moved to an expert later, the wealth is no martingale.
    """
    everything = harm_of(sum(counts.values(), Comparison()))
    untouched = [0.0] * (max(experts, 1) - len(counts))  # the log of an untouched stake
    return _mean([everything, _mean([*map(harm_of, counts.values()), *untouched])])


def harm_of(counts: Comparison) -> float:
    """Return the log of the evidence that the canary is worse on the texts of some counts."""
    return _mean(counts.worse * math.log1p(x) + counts.better * math.log1p(-x) for x in BETS)


def evidence_of_no_harm(counts: Mapping[str, Comparison], *, margin: float) -> float:
    """Return the log of the evidence that the canary is worse by less than a margin.

    Args:
        counts: Counts by expert.
        margin: δ, 0–1: the accepted loss of accuracy.
    """
    all_texts = sum(counts.values(), Comparison())
    stakes = [x / (1 - margin) for x in BETS]
    return _mean(
        all_texts.worse * math.log1p(-x * (1 - margin))
        + all_texts.better * math.log1p(x * (1 + margin))
        + all_texts.same * math.log1p(x * margin)
        for x in stakes
    )


def evidence_of_declining(counts: Mapping[str, Comparison], *, margin: float) -> float:
    """Return the log of the evidence that the canary declines more texts by more than a margin.

    Args:
        counts: Counts by expert.
        margin: δ, 0–1: the accepted increase of the share of declined texts.
    """
    every = sum(counts.values(), Comparison())
    more, less = every.only_canary_declined, every.only_declined
    stakes = [x / (1 + margin) for x in BETS]
    return _mean(
        more * math.log1p(x * (1 - margin))
        + less * math.log1p(-x * (1 + margin))
        + (every.texts - more - less) * math.log1p(-x * margin)
        for x in stakes
    )


def _mean(logs: Iterable[float]) -> float:
    """Return the log of the mean of numbers, given their logs."""
    some = list(logs)
    top = max(some)
    return top + math.log(sum(math.exp(x - top) for x in some) / len(some))
