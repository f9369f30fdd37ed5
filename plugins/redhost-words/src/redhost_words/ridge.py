"""The expert's weights in closed form: ridge regression on words and z, in the dual.

    K = F Fᵀ + c Z Zᵀ / D        α = (K + λ I)⁻¹ (Y − mean)        Wᵤ = Fᵀ α        W = c αᵀ Z / D

F are the rows' f(x), each of length 1 (`expert`), Y zeros and ones. In Z the states before the last
layer, which are nearer to words, count ρ times. With each row left out its own
score is y_i − α_i / (K + λ I)⁻¹_ii (Allen's PRESS, 1974), so c and λ, and the three numbers that
turn scores into logits, are chosen by the likelihood of all rows, and none is held out for them.
With the row in, it is y_i − λ α_i: by the difference a row of a card is answered as if unseen.

Of a set of labels each is a choice by itself, between its logit and 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt
from scipy import linalg, sparse
from scipy.sparse.linalg import LinearOperator, cg

from .scalars import Fitted, fit_scalars

__all__ = ["EXACT", "Solved", "idf_of", "normalised", "solve"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

SHARES = (0.0, 0.1, 0.3, 1.0, 3.0)
"""Candidates for c."""

PENALTIES = (0.03, 0.1, 0.3, 1.0)
"""Candidates for λ."""

EARLIER = (1.0, 1 / 6)
"""Candidates for ρ."""

FEWEST, FEW = 8, (60.0, 1.0, 1 / 6)
"""Rows of every label from which anything is chosen; c, λ and ρ where a label has fewer. With one
of two rows left out, half as much speaks for its label as for others: all scores look useless."""

CHOOSING, EXACT = 1024, 6144
"""Rows on which c and λ are chosen, and rows on which the scalars are; evenly from all of them. The
weights are solved on all rows. Of more than `EXACT` none is left out, so cards' are withheld."""

EQUAL = 8.0
"""Pseudo-count of rows of every label in its prior, as for linear heads."""

START = (8.0, 1.0, 0.0)
"""Where the scalars of scores and priors start, and what they are drawn to."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Solved:
    """Logits of the labels: F Wᵤ + Z Wᵀ + b.

    Attributes:
        words: Wᵤ ``(P, L)``.
        states: W ``(L, D)``.
        bias: b = β₂ ln(n_y + 8) + β₃ n_y / n, ``(L,)``.
        loss: The mean −log p of rows left out.
        left_out: What leaving a row out adds to its logits, ``(n, L)``; of no row if there are more
            than `EXACT`.
    """

    words: Floats
    states: Floats
    bias: Floats
    loss: float
    left_out: Floats


def idf_of(u: sparse.csr_array) -> Floats:
    """Return the inverse document frequency ``(P,)`` of places in texts ``(n, P)``."""
    found = np.bincount(u.indices, minlength=u.shape[1])
    return np.asarray(1 + np.log((1 + u.shape[0]) / (1 + found)))


def normalised(u: sparse.csr_array, idf: Floats) -> sparse.csr_array:
    """Return f ``(n, P)``: u times idf, rows of length 1."""
    weighted = (u @ sparse.diags_array(idf)).tocsr()
    length = np.sqrt(np.asarray(weighted.multiply(weighted).sum(axis=1)).ravel())
    return (sparse.diags_array(1 / np.maximum(length, 1e-12)) @ weighted).tocsr()


def solve(
    f: sparse.csr_array,
    z: Floats,
    truth: Ints,
    *,
    last: int,
    sets: bool = False,
) -> Solved:
    """Solve an expert's weights.

    Args:
        f: The rows' words, ``(n, P)``.
        z: Their bus vectors ``(n, D)``.
        truth: Whether each row has each label, ``(n, L)`` of 0 and 1.
        last: How many of the D dimensions are the last layer's; they come last.
        sets: Whether a row may have any number of labels, instead of one.
    """
    width, rows = z.shape[1], len(truth)
    counts = truth.sum(axis=0).astype(np.float64)
    others = np.log(rows - counts + EQUAL) if sets else 0
    share, priors = counts / rows, np.stack([np.log(counts + EQUAL) - others, counts / rows])
    right = truth - share
    some = _evenly(rows, CHOOSING)
    choice = counts.min() >= FEWEST
    c, penalty, earlier = FEW
    if choice:
        _, c, penalty, earlier = min(
            (_sharpened(score, priors, truth[some], sets=sets).loss, *tried)
            for tried, score in _left_out_by(f[some], z[some], right[some], last)
        )
    scale = c / width * _weights(width, last, earlier)
    some, states = _evenly(rows, EXACT), z * np.sqrt(scale)
    alpha, score = _left_out(f[some], states[some], right[some], penalty)
    fitted = _sharpened(score, priors, truth[some], sets=sets)
    beta, *weights = fitted.values if choice else START
    without = beta * (score - right + penalty * alpha) if len(some) == rows else right[:0]
    alpha = beta * (alpha if len(some) == rows else _solve_all(f, states, right, penalty))
    return Solved(
        words=np.asarray(f.T @ alpha),
        states=scale * (alpha.T @ z),
        bias=np.array(weights) @ priors,
        loss=fitted.loss,
        left_out=without,
    )


def _evenly(rows: int, most: int) -> Ints:
    return np.arange(0, rows, -(-rows // most))


def _sharpened(score: Floats, priors: Floats, truth: Ints, *, sets: bool) -> Fitted:
    terms, target = [score, *(np.tile(p, (len(score), 1)) for p in priors)], truth.argmax(axis=1)
    if sets:
        terms = [np.stack([np.zeros(t.size), t.ravel()], axis=1) for t in terms]
        target = truth.ravel()
    return fit_scalars(terms, target, start=START, positive=1)


def _weights(width: int, last: int, earlier: float) -> Floats:
    """Return ρ for the dimensions before the last layer, and 1 for its own, ``(D,)``."""
    return np.repeat([earlier, 1.0], [width - last, last])


def _left_out_by(
    f: sparse.csr_array, z: Floats, right: Floats, last: int
) -> Iterator[tuple[tuple[float, float, float], Floats]]:
    """Yield c, λ and ρ, and the scores ``(n, L)`` of rows left out, for all candidates."""
    words, width = (f @ f.T).toarray(), z.shape[1]
    for earlier, c in product(EARLIER if last < width else EARLIER[:1], SHARES):
        states = (z * _weights(width, last, earlier)) @ z.T / width
        values, vectors = linalg.eigh(words + c * states, check_finite=False)
        rotated, squares = vectors.T @ right, np.square(vectors)
        for penalty in PENALTIES:
            inverse = 1 / (np.maximum(values, 0) + penalty)
            alpha, diagonal = vectors @ (inverse[:, None] * rotated), squares @ inverse
            yield (c, penalty, earlier), right - alpha / diagonal[:, None]


def _left_out(
    f: sparse.csr_array, z: Floats, right: Floats, penalty: float
) -> tuple[Floats, Floats]:
    """Return α, and the scores of rows that are left out, ``(n, L)`` each."""
    kernel = (f @ f.T).toarray() + z @ z.T
    kernel.flat[:: len(kernel) + 1] += penalty
    factor = linalg.cho_factor(kernel, lower=True, overwrite_a=True, check_finite=False)
    inverse = linalg.cho_solve(factor, np.eye(len(kernel)), overwrite_b=True, check_finite=False)
    alpha = inverse @ right
    return alpha, right - alpha / inverse.diagonal()[:, None]


def _solve_all(f: sparse.csr_array, z: Floats, right: Floats, penalty: float) -> Floats:
    """Return α ``(n, L)`` of all rows, by conjugate gradients: K itself is never made."""

    def product(v: Floats) -> Floats:
        return np.asarray(f @ (f.T @ v) + z @ (z.T @ v) + penalty * v)

    kernel = LinearOperator((len(right), len(right)), matvec=product, dtype=np.float64)
    solved = [cg(kernel, column, rtol=1e-6, maxiter=1000)[0] for column in right.T]
    return np.stack(solved, axis=1)
