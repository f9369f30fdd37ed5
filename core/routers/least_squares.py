"""Ridge regression onto labels, from sums alone.

    A = Σ z zᵀ − N m mᵀ + λ I      w_y = A⁻¹ (s_y − n_y m)      b_y = n_y / N − w_yᵀ m

m is the mean of all N rows: the intercept is not shrunk. Sums of teams add up, so the weights are
those of one regression on everybody's rows (Hoerl and Kennard 1970).

Scores of zeros and ones become logits by two numbers, β and κ:

    β (w_yᵀ z + b_y − (1 − κ) n_y / N)

With κ = 1 a label starts from its share of the rows, as the regression has it; with κ = 0 all start
alike. Where labels are uneven neither is right: how far a row lies from the mean says it as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from .domain_statistics import Statistics

PENALTIES = (3.0, 30.0, 100.0, 300.0, 1000.0, 3000.0)
"""λ that are tried; z has unit variance, so they count rows."""

SHARPNESS = (4.0, 6.0, 8.0, 12.0, 16.0, 24.0)
"""β that are tried: regression of zeros and ones gives scores between both, logits are wider."""

STARTS = (1.0, 0.75, 0.5, 0.25, 0.0)
"""κ that are tried, where there are rows enough to tell: two labels, one with twice the rows, .976
right for .992 (validation rows of Reuters newswire, docs/lab-notes.md)."""

EACH = 8
"""Rows a label, on average, from which on κ is chosen: of fewer, those left out say the opposite of
how frequent their labels are."""

MOST_LEVERAGE = 0.999
"""h_i, at most: a row that decides alone how it is scored says nothing once it is left out."""

SHARE, BETA = 1 / 30, 8.0
"""λ as a share of N, and β, where no rows are at hand to choose them by; best on validation rows of
20 Newsgroups."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LeastSquares:
    """A solved regression onto Y labels, in float64.

    Attributes:
        weight: w_y, ``(Y, D)``.
        bias: b_y, ``(Y,)``.
        share: n_y / N, ``(Y,)``.
        factor: The lower Cholesky factor of A, ``(D, D)``.
        mean: m, ``(D,)``.
        rows: N.
    """

    weight: Tensor
    bias: Tensor
    share: Tensor
    factor: Tensor
    mean: Tensor
    rows: float

    @classmethod
    def solve(cls, known: Statistics, *, penalty: float) -> LeastSquares:
        """Solve for all labels.

        Args:
            known: The sums of all rows.
            penalty: λ.
        """
        counts, sums = known.counts, known.sums
        rows = float(counts.sum())
        mean = sums.sum(0) / rows
        normal = torch.addr(known.scatter, mean, mean, alpha=-rows)
        normal.diagonal().add_(penalty)
        factor = torch.linalg.cholesky(normal)  # which reads the lower half alone
        weight = torch.cholesky_solve((sums - counts[:, None] * mean).T, factor).T
        return cls(
            weight=weight,
            bias=counts / rows - weight @ mean,
            share=counts / rows,
            factor=factor,
            mean=mean,
            rows=rows,
        )

    def logits(self, *, beta: float, kappa: float) -> tuple[Tensor, Tensor]:
        """Return the weights ``(Y, D)`` and biases ``(Y,)`` of the logits, in float64."""
        return beta * self.weight, beta * (self.bias - (1 - kappa) * self.share)

    def left_out(self, z: Tensor, target: Tensor) -> Tensor:
        """Return the scores ``(N, Y)`` that rows would get had each not been among the sums.

            ŷ_−i = y_i − (y_i − ŷ_i) / (1 − h_i)      h_i = 1/N + (z_i − m)ᵀ A⁻¹ (z_i − m)

        Allen's PRESS (1974). Of rows that are not among them it says a little too little.

        Args:
            z: Rows ``(N, D)``.
            target: The index of each row's label, ``(N,)``.
        """
        wide = z.to(torch.float64)
        right = one_hot(target, len(self.bias)).to(torch.float64)
        score = wide @ self.weight.T + self.bias
        white = torch.linalg.solve_triangular(self.factor, (wide - self.mean).T, upper=False)
        leverage = (1 / self.rows + white.square().sum(0)).clamp(max=MOST_LEVERAGE)  # (N,)
        found: Tensor = right - (right - score) / (1 - leverage[:, None])
        return found


def left_out_by_penalty(
    known: Statistics, z: Tensor, target: Tensor
) -> Iterator[tuple[float, Tensor]]:
    """Yield each λ of `PENALTIES` with what `LeastSquares.left_out` gives of rows under it.

    Where rows are all there are, and fewer than their numbers, their inner products say the same:

        G = (Z Zᵀ + λ I)⁻¹      y − ŷ = λ G (y − n_y / N)      1 − h_i = λ G_ii − 1 / N

    with Z the rows ``(N, D)`` less m: products with (N, N) matrices instead of (D, D).

    Args:
        known: The sums of all rows.
        z: Rows ``(N, D)``, or some of them.
        target: The index of each row's label, ``(N,)``.
    """
    rows = float(known.counts.sum())
    if len(z) < rows or len(z) > z.shape[1]:
        for penalty in PENALTIES:
            yield penalty, LeastSquares.solve(known, penalty=penalty).left_out(z, target)
        return
    right = one_hot(target, len(known.counts)).to(torch.float64)
    centred = z.to(torch.float64) - known.sums.sum(0) / rows
    products, off = centred @ centred.T, right - known.counts / rows
    for penalty in PENALTIES:
        shifted = products.clone()
        shifted.diagonal().add_(penalty)
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(shifted))
        rest = (penalty * inverse.diagonal() - 1 / rows).clamp(min=1 - MOST_LEVERAGE)
        yield penalty, right - penalty * (inverse @ off) / rest[:, None]


class Sharpness(NamedTuple):
    """β and κ, the mean −log p of rows under them, and its standard error."""

    loss: float
    beta: float
    kappa: float
    error: float


def sharpest(
    score: Tensor,
    groups: Tensor,
    target: Tensor,
    *,
    share: Tensor,
    usual: float = 1.0,
    prior: Tensor | None = None,
) -> Sharpness:
    """Return the smallest mean −log p of what rows belong to, and β and κ it is reached with.

        p(k) ∝ Σ over y of k of exp(β (score_y − (1 − κ) share_y) + prior_y)

    Args:
        score: ``(N, Y)``.
        groups: k of each label, ``(Y,)``, ascending from 0; labels themselves where all differ.
        target: What each row belongs to, ``(N,)``.
        share: Of each label in the rows that were learnt from, ``(Y,)``.
        usual: κ where there are fewer than `EACH` rows a label.
        prior: Log priors ``(Y,)``; None is 0.
    """
    starts = STARTS if len(target) >= EACH * len(share) else (usual,)
    found = []
    for kappa, beta in product(starts, SHARPNESS):
        logits = beta * (score - (1 - kappa) * share)
        logits = logits if prior is None else logits + prior
        loss = cross_entropy(_of_groups(logits, groups), target, reduction="none")
        error = float(loss.std(correction=0)) / len(loss) ** 0.5
        found.append(Sharpness(float(loss.mean()), beta, kappa, error))
    return min(found)


def _of_groups(logits: Tensor, groups: Tensor) -> Tensor:
    """Return the logsumexp ``(N, K)`` of the logits ``(N, Y)`` of each group."""
    most = logits.amax(-1, keepdim=True)
    mass = logits.new_zeros(len(logits), int(groups.max()) + 1)
    mass.index_add_(1, groups, (logits - most).exp())
    return mass.clamp_min(torch.finfo(mass.dtype).tiny).log() + most
