"""Ridge regression onto labels, from sums alone.

    A = Σ z zᵀ − N m mᵀ + λ I      w_y = A⁻¹ (s_y − n_y m)      b_y = n_y / N − w_yᵀ m

m is the mean of all N rows, so the intercept is not shrunk. Since the sums of teams add up, the
weights are those of one regression on the pooled rows (Hoerl and Kennard 1970).

Its scores approximate zeros and ones. Two numbers, β and κ, turn them into logits:

    β (w_yᵀ z + b_y − (1 − κ) n_y / N)

With κ = 1 a label starts from its share of the rows, as in the regression; with κ = 0 all labels
start equal. For labels of unequal frequency neither is right, as a row's distance from the mean
also carries this information.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from .domain_statistics import Statistics

PENALTIES = (3.0, 30.0, 100.0, 300.0, 1000.0, 3000.0)
"""Candidates for λ; z has unit variance, so λ counts rows."""

SHARPNESS = (4.0, 6.0, 8.0, 12.0, 16.0, 24.0)
"""Candidates for β: regression onto zeros and ones has scores in between, logits are wider."""

STARTS = (1.0, 0.75, 0.5, 0.25, 0.0)
"""Candidates for κ, given enough rows. For two labels, one with twice the rows, accuracy is .992;
.989 with κ = 1 and .976 with κ = 0 (validation rows of Reuters newswire, docs/lab-notes.md)."""

EACH = 8
"""Mean rows per label from which on κ is chosen. With fewer, left-out rows suggest the opposite of
the labels' true frequencies."""

MOST_LEVERAGE = 0.999
"""Upper bound of h_i: a row that alone determines its own score is no evidence once left out."""

SHARE, BETA = 1 / 30, 8.0
"""λ as a share of N, and β, used when there are no rows to choose them by; best on validation rows
of 20 Newsgroups."""


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
    def solve(cls, statistics: Statistics, *, penalty: float) -> LeastSquares:
        """Solve for all labels.

        Args:
            statistics: The sums of all rows.
            penalty: λ.
        """
        counts, sums = statistics.counts, statistics.sums
        rows = float(counts.sum())
        mean = sums.sum(0) / rows
        normal = torch.addr(statistics.scatter, mean, mean, alpha=-rows)
        normal.diagonal().add_(penalty)
        factor = torch.linalg.cholesky(normal)  # which reads only the lower half
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
        """Return the scores ``(N, Y)`` that rows would get if each were left out of the sums.

            ŷ_−i = y_i − (y_i − ŷ_i) / (1 − h_i)      h_i = 1/N + (z_i − m)ᵀ A⁻¹ (z_i − m)

        This is Allen's PRESS (1974). For rows not in the sums, it is slightly pessimistic.

        Args:
            z: Rows ``(N, D)``.
            target: The index of each row's label, ``(N,)``.
        """
        wide = z.to(torch.float64)
        right = one_hot(target, len(self.bias))
        score = wide @ self.weight.T + self.bias
        white = torch.linalg.solve_triangular(self.factor, (wide - self.mean).T, upper=False)
        leverage = (1 / self.rows + white.square().sum(0)).clamp(max=MOST_LEVERAGE)  # (N,)
        scores: Tensor = right - (right - score) / (1 - leverage[:, None])
        return scores


class Sharpness(NamedTuple):
    """β and κ, the mean −log p of rows with them, and its standard error."""

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
    """Return the smallest mean −log p of the rows' targets, with the β and κ that attain it.

        p(k) ∝ Σ over y of k of exp(β (score_y − (1 − κ) share_y) + prior_y)

    Args:
        score: ``(N, Y)``.
        groups: k of each label, ``(Y,)``, ascending from 0; one group per label to predict labels.
        target: The group of each row, ``(N,)``.
        share: Each label's share of the training rows, ``(Y,)``.
        usual: κ where there are fewer than `EACH` rows a label.
        prior: Log priors ``(Y,)``; None is 0.
    """
    starts = STARTS if len(target) >= EACH * len(share) else (usual,)
    tried = []
    for kappa, beta in product(starts, SHARPNESS):
        logits = beta * (score - (1 - kappa) * share)
        logits = logits if prior is None else logits + prior
        loss = cross_entropy(_of_groups(logits, groups), target, reduction="none")
        error = float(loss.std(correction=0)) / len(loss) ** 0.5
        tried.append(Sharpness(float(loss.mean()), beta, kappa, error))
    return min(tried)


def _of_groups(logits: Tensor, groups: Tensor) -> Tensor:
    """Return the logsumexp ``(N, K)`` of the logits ``(N, Y)`` of each group."""
    most = logits.amax(1, keepdim=True)
    mass = logits.new_zeros(len(logits), int(groups.max()) + 1)
    mass.index_add_(1, groups, (logits - most).exp())
    return mass.clamp_min(torch.finfo(mass.dtype).tiny).log() + most
