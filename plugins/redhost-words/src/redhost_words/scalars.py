"""A few numbers that turn scores into logits, fitted by the likelihood of labels.

    logits = Σ_i β_i t_i        loss = Σ w_n (−log p_n) / Σ w_n + (1 / n) Σ_i (β_i / β⁰_i − 1)²

The penalty keeps the numbers near those of other corpora where rows are few.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize
from scipy.special import log_softmax

__all__ = ["Fitted", "fit_scalars"]

Floats = npt.NDArray[np.float64]


class Fitted(NamedTuple):
    """The loss without its penalty, and β."""

    loss: float
    values: Floats


def fit_scalars(
    terms: Sequence[Floats],
    target: npt.NDArray[np.int64],
    *,
    start: Sequence[float],
    positive: int,
    weight: Floats | None = None,
) -> Fitted:
    """Fit β.

    Args:
        terms: t_i, ``(n, L)`` each.
        target: The number of each row's label, ``(n,)``.
        start: β⁰; where it is 0, β itself is penalised.
        positive: How many of the first may not be negative.
        weight: w, ``(n,)``; by default all equal.
    """
    table, centre = np.stack(terms, axis=-1), np.array(start)
    rows = np.arange(len(target))
    share = np.full(len(target), 1 / len(target)) if weight is None else weight / weight.sum()
    scale = np.where(centre == 0, 1.0, centre)

    def loss(values: Floats) -> tuple[float, Floats]:
        logs = log_softmax(table @ values, axis=-1)
        off = np.exp(logs)
        off[rows, target] -= 1
        slope = np.einsum("n,nl,nli->i", share, off, table)
        apart = (values - centre) / scale
        penalised = -(share * logs[rows, target]).sum() + np.square(apart).sum() / len(rows)
        return float(penalised), slope + 2 * apart / scale / len(rows)

    bounds = [(0, None)] * positive + [(None, None)] * (len(start) - positive)
    found = minimize(loss, centre, jac=True, method="L-BFGS-B", bounds=bounds)
    plain = -(share * log_softmax(table @ found.x, axis=-1)[rows, target]).sum()
    return Fitted(float(plain), np.asarray(found.x))
