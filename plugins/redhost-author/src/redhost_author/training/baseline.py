"""The baseline check: a trained expert or backbone must be better than a constant answer.

The constant is the most frequent label of the training rows, or their median.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from statistics import fmean, median

from redhost.core.label_scores import score_label_sets
from redhost.core.types import Row
from redhost.registry.errors import HarmError

from .data import FEW_GATE

WORSE = 1.1
"""Largest allowed ratio of the error to the constant's; not checked below `FEW_GATE` rows."""

HINT = (
    "What was made is kept, to look at. Check the labels and their field, bring more rows, or give "
    "it more --epochs."
)


def refuse_below_constant_set(
    subject: str, score: float, rows: Sequence[Row], *, taught: Sequence[Row]
) -> None:
    """Refuse a model whose label sets are worse than the most frequent set.

    Args:
        subject: Name of the model in messages.
        score: Its micro F1 on the rows, 0–1.
        rows: Rows that it did not learn from; with fewer than twenty nothing is refused.
        taught: Rows that it learnt from.

    Raises:
        HarmError: If it is worse by more than a point.
    """
    if len(rows) < FEW_GATE or not taught:
        return
    [(usual, _)] = Counter(r.label for r in taught).most_common(1)
    constant = score_label_sets((r.label, usual) for r in rows).micro_f1
    if score < constant - 0.01:
        raise HarmError(
            f"{subject} has learnt less than nothing on {len(rows)} rows set aside",
            expected=f"micro F1 {constant:.3f}, that of one answer to all",
            found=f"{score:.3f}",
            hint=HINT,
        )


def refuse_below_constant(
    subject: str, score: float, rows: Sequence[Row], *, taught: Sequence[Row], numbers: bool = False
) -> None:
    """Refuse a model that is worse than a constant answer.

    Args:
        subject: Name of the model in messages.
        score: Its accuracy on the rows, 0–1; with numbers, its mean absolute error.
        rows: Labelled rows that it did not learn from; with fewer than twenty, only NaN is refused.
        taught: Rows that it learnt from.
        numbers: Whether labels are numbers.

    Raises:
        HarmError: If it is worse by more than one point and two rows, or a tenth of the error.
    """
    no_number = math.isnan(score)
    if not rows or not taught or (len(rows) < FEW_GATE and not no_number):
        return
    if numbers:
        middle = median(float(r.label) for r in taught)
        constant = fmean(abs(float(r.label) - middle) for r in rows)
        worse, measure = score > WORSE * constant, "mean error"
    else:
        [(usual, _)] = Counter(r.label for r in taught).most_common(1)
        constant = fmean(r.label == usual for r in rows)
        worse, measure = constant - score > max(0.01, 2 / len(rows)) + 1e-9, "accuracy"
    if worse or no_number:
        raise HarmError(
            f"{subject} has learnt less than nothing on {len(rows)} rows set aside",
            expected=f"{measure} {constant:.3f}, that of one answer to all",
            found=f"{score:.3f}",
            hint=HINT,
        )
