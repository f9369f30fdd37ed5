"""A linear head over an expert's own labels, solved from sums: no epochs, no step size.

    Δ_y(z) = β (w_yᵀ (z − m) + κ n_y / N) + log (n_y + c) / (N + c Y)      `routers.least_squares`

λ, β and κ maximise the leave-one-out likelihood of the rows, so no rows have to be held out for
them. The only row of a label is not used for this, because without it the label has no rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from redhost.core.bus.experts import Linear
from redhost.core.routers.domain_statistics import Statistics
from redhost.core.routers.least_squares import (
    MOST_LEVERAGE,
    PENALTIES,
    LeastSquares,
    sharpest,
)

from .expert import TrainedExpert

EQUAL = 8.0
"""c: pseudo-count of rows added for every label, so that with few rows the result does not depend
on which label has one more. With eight rows of four labels: accuracy .47 instead of .31 (validation
rows of 20 Newsgroups, docs/lab-notes.md)."""

MOST_ROWS = 2048
"""Most rows that are left out in turn: for every λ, each costs a product with a (D, D) matrix, or a
smaller one for fewer than D rows."""


def solve_linear_head(z: Tensor, answers: Sequence[str], labels: Sequence[str]) -> TrainedExpert:
    """Solve a linear head.

    Args:
        z: The head's input for each row, ``(N, D)``.
        answers: N labels.
        labels: The labels it may predict, in the order of its logits. A label without rows has the
            smallest prior and no dependence on z.
    """
    statistics = Statistics.of_rows(z, answers)
    place = {y: n for n, y in enumerate(statistics.labels)}
    order = torch.tensor([labels.index(y) for y in statistics.labels])
    counts = torch.zeros(len(labels), dtype=torch.float64).index_add(0, order, statistics.counts)
    prior = ((counts + EQUAL) / (len(z) + EQUAL * len(labels))).log()
    target = torch.tensor([place[y] for y in answers[:MOST_ROWS]])
    several = statistics.counts[target] > 1
    scored = several if bool(several.any()) else ~several
    share, each = statistics.counts / len(z), torch.arange(len(place))
    fitted, penalty = min(
        (
            sharpest(
                score[scored], each, target[scored], share=share, usual=0.0, prior=prior[order]
            ),
            penalty,
        )
        for penalty, score in left_out_by_penalty(statistics, z[:MOST_ROWS], target)
    )
    solved = LeastSquares.solve(statistics, penalty=penalty)
    weight, bias = torch.zeros(len(labels), z.shape[1]), prior.float()
    slope, start = solved.logits(beta=fitted.beta, kappa=fitted.kappa)
    weight[order] = slope.float()
    bias[order] += start.float()
    expert = Linear(W=weight, b=bias, space="labels", labels=tuple(labels))
    expert = expert.requires_grad_(False).eval()
    return TrainedExpert(expert=expert, epoch=0, loss=fitted.loss)


def left_out_by_penalty(
    statistics: Statistics, z: Tensor, target: Tensor
) -> Iterator[tuple[float, Tensor]]:
    """Yield each λ of `PENALTIES` with the scores of `LeastSquares.left_out` under it.

    If the rows are complete and fewer than their dimensions, inner products give the same result:

        G = (Z Zᵀ + λ I)⁻¹      y − ŷ = λ G (y − n_y / N)      1 − h_i = λ G_ii − 1 / N

    with Z the rows ``(N, D)`` less m: products with (N, N) matrices instead of (D, D).

    Args:
        statistics: The sums of all rows.
        z: Rows ``(N, D)``, or some of them.
        target: The index of each row's label, ``(N,)``.
    """
    rows = float(statistics.counts.sum())
    if len(z) < rows or len(z) > z.shape[1]:
        for penalty in PENALTIES:
            yield penalty, LeastSquares.solve(statistics, penalty=penalty).left_out(z, target)
        return
    right = one_hot(target, len(statistics.counts)).to(torch.float64)
    centred = z.to(torch.float64) - statistics.sums.sum(0) / rows
    products, off = centred @ centred.T, right - statistics.counts / rows
    for penalty in PENALTIES:
        shifted = products.clone()
        shifted.diagonal().add_(penalty)
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(shifted))
        residual = (penalty * inverse.diagonal() - 1 / rows).clamp(min=1 - MOST_LEVERAGE)
        yield penalty, right - penalty * (inverse @ off) / residual[:, None]
