"""Calibration of probabilities: expected calibration error, reliability, coverage.

    ECE = Σ_b (n_b / N) · |accuracy of b − mean confidence of b|             Guo et al. 2017, eq. 3

over bins of equal width; confidence is the largest probability of a row. The coverage curve is the
accuracy on the most confident rows, by the share of rows answered (Geifman & El-Yaniv 2017).
"""

from __future__ import annotations

import msgspec
from torch import Tensor

BINS = 15
"""Number of bins, as in the paper."""

SHARES = tuple(n / 20 for n in range(1, 21))
"""Shares of rows answered, at the points of the coverage curve."""


class Bin(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of similar confidence.

    Attributes:
        rows: Number of rows.
        confidence: Their mean confidence, 0–1.
        accuracy: Their accuracy, 0–1.
    """

    rows: int
    confidence: float
    accuracy: float


class Coverage(msgspec.Struct, frozen=True, kw_only=True):
    """The most confident rows.

    Attributes:
        share: Their share of all rows, 0–1.
        accuracy: Their accuracy, 0–1.
    """

    share: float
    accuracy: float


class Reliability(msgspec.Struct, frozen=True, kw_only=True):
    """The calibration of probabilities.

    Attributes:
        ece: The expected calibration error, 0–1.
        bins: The nonempty bins, from low to high confidence.
        coverage: The coverage curve, from the most confident rows alone to all rows.
    """

    ece: float
    bins: tuple[Bin, ...]
    coverage: tuple[Coverage, ...]


def reliability(confidence: Tensor, hits: Tensor) -> Reliability:
    """Return the relation between confidence and accuracy.

    Args:
        confidence: The largest probability of each row ``(N,)``; N at least 1.
        hits: Whether each row was answered correctly, ``(N,)`` of 0.0 and 1.0.
    """
    confidence, hits = confidence.double(), hits.double()
    place = (confidence * BINS).long().clamp(max=BINS - 1)
    bins = [
        Bin(
            rows=int(mine.sum()),
            confidence=float(confidence[mine].mean()),
            accuracy=float(hits[mine].mean()),
        )
        for mine in (place == n for n in range(BINS))
        if mine.any()
    ]
    gaps = sum(b.rows * abs(b.accuracy - b.confidence) for b in bins)
    ranked = hits[confidence.argsort(descending=True, stable=True)].cumsum(0)
    counts = [max(1, round(s * len(hits))) for s in SHARES]
    coverage = (
        Coverage(share=s, accuracy=float(ranked[n - 1]) / n)
        for s, n in zip(SHARES, counts, strict=True)
    )
    return Reliability(ece=gaps / len(hits), bins=tuple(bins), coverage=tuple(coverage))
