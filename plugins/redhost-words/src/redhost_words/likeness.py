"""Whether counts are of rows like those that a card shows: a test of two means of words.

    d = Σ_v w_v (S_v / N − m_v)²        w_v = (Σ_y S_yv)^(−1/2)

m is the mean of the n rows shown, S / N that of the N rows counted. If the rows shown were drawn
from those counted, d has the mean f tr C and about the variance 2 f² tr C², where C is the
covariance of a row's weighted words, estimated from the rows shown, and f = (1 − n / N) / n. The
distance of d from its mean, in standard deviations, is taken over all rows and over the rows of
each label together; the larger one counts. Words of others among the counts make it large.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy import sparse

from .places import Ints

__all__ = ["FEWEST_ROWS", "MOST_ALONE", "MOST_UNLIKE", "loneliness", "unlikeness"]

Floats = npt.NDArray[np.float64]

FEWEST_ROWS = 24
"""Rows of a team from which counts are compared."""

MOST_UNLIKE = 6.0
"""Largest distance of honest counts. Of 352 honest teams of 24 to 3,000 rows none was above 5.1; of
90 from 1,000 rows on with half their counts from another label all are (docs/lab-notes.md)."""

RARE = 4.0
"""A place is rare if its sum is below so many times its weight in a row: two or three texts have
it."""

MOST_ALONE = 30.0
"""Most places of one text alone for each rare one. 250 honest teams of 24 to 4,400 rows have at
most 6.8; with every row counted four times or more often, at least 54 (docs/lab-notes.md)."""


def loneliness(sums: sparse.csr_array, words: sparse.csr_array, *, alone: int) -> float:
    """Return how many places of the rows shown one text alone has, for each that is rare, plus one.

    Args:
        sums: S ``(Y, P)``.
        words: Words of the rows shown ``(n, P)``, at counted places.
        alone: How many words of theirs are not counted.
    """
    total, row = np.asarray(sums.sum(axis=0)).ravel(), words.tocoo()
    return alone / (1 + int((total[row.col] < RARE * row.data).sum()))


def unlikeness(
    sums: sparse.csr_array, rows: Floats, words: sparse.csr_array, target: Ints
) -> float:
    """Return the distance of counts from the rows shown, in standard deviations.

    Args:
        sums: S ``(Y, P)``.
        rows: n_y, ``(Y,)``.
        words: Words of the rows shown ``(n, P)``, at counted places.
        target: The number of each one's label ``(n,)``.
    """
    total = np.asarray(sums.sum(axis=0)).ravel()
    weight = sparse.diags_array(np.where(total > 0, np.maximum(total, 1e-12) ** -0.25, 0))
    sums, words = (sums @ weight).tocsr(), (words @ weight).tocsr()
    every = _moments(np.asarray(sums.sum(axis=0)).ravel(), float(rows.sum()), words)
    by_label = np.zeros(3)
    for label, count in enumerate(rows):
        shown, own = words[target == label], sums[[label]].toarray()[0]
        by_label += np.array([count, count, count**2]) * _moments(own, float(count), shown)
    return max(
        float((d - mean) / np.sqrt(variance)) if variance > 0 else 0.0
        for d, mean, variance in (every, by_label)
    )


def _moments(sums: Floats, counted: float, words: sparse.csr_array) -> Floats:
    """Return d, its mean and its variance ``(3,)``; zeros of fewer than two rows, or of all."""
    shown = words.shape[0]
    if shown < 2 or counted <= shown:  # noqa: PLR2004
        return np.zeros(3)
    mean = np.asarray(words.mean(axis=0)).ravel()
    products = (words @ words.T).toarray()
    products += products.mean() - products.mean(axis=0)[None] - products.mean(axis=1)[:, None]
    diagonal = products.diagonal()
    trace = float(diagonal.sum()) / (shown - 1)
    # Products of different rows alone: a row's with itself would count its own noise.
    of_square = float(np.square(products).sum() - np.square(diagonal).sum()) / shown / (shown - 1)
    share = (1 - shown / counted) / shown
    d = float(np.square(sums / counted - mean).sum())
    return np.array([d, share * trace, 2 * share**2 * of_square])
