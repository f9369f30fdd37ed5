"""A linear head over any number of an expert's own labels a row, solved from sums.

    Δ_y(z) = a_y (w_yᵀ z + b_y) + c_y

w_y and b_y are one ridge regression onto zeros and ones (`routers.least_squares`); a_y and c_y make
of its score the log odds of the label (Platt 1999). They are fitted to the scores that rows get
when each is left out in turn, and λ is the one under which these rows are likeliest: no row has to
be kept from learning. Rows of the background card are rows without a label.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from ..bus.experts import Linear
from ..bus.label_set_head import SigmoidHead
from ..routers.least_squares import PENALTIES, LeastSquares
from .expert import TrainedExpert
from .linear_head import MOST_ROWS

STEPS = 50
"""Newton steps; a dozen reach float precision."""

LARGEST_STEP, RIDGE = 1.0, 1e-3
"""How far one of them may go, and what keeps the slope of a score that says nothing at 0."""


def solve_label_heads(
    z: Tensor, answers: Sequence[str], labels: Sequence[str], *, others: Tensor
) -> TrainedExpert:
    """Solve a linear head for sets of labels.

    Args:
        z: What it reads of each row, ``(N, D)``.
        answers: N sets of labels.
        labels: The labels it may answer, in the order of its logits.
        others: What it reads of texts without any of them, ``(M, D)``.
    """
    own = SigmoidHead().targets(answers, labels)
    target = torch.cat([own, own.new_zeros(len(others), len(labels))]).double()  # (N + M, L)
    z = torch.cat([z, others])
    some = slice(None, None, -(-len(z) // MOST_ROWS))
    best = []
    for penalty in PENALTIES:
        solved = LeastSquares.of_targets(z, target, penalty=penalty)
        score = solved.left_out(z[some], target[some])
        slope, start = log_odds(score, target[some])
        logits = slope * score + start
        mean = float(binary_cross_entropy_with_logits(logits, target[some])) * len(labels)
        best.append((mean, solved, slope, start))
    loss, solved, slope, start = min(best, key=lambda tried: tried[0])
    weight = slope[:, None] * solved.weight
    bias = slope * solved.bias + start
    expert = Linear(W=weight.float(), b=bias.float(), space="labels", labels=tuple(labels))
    return TrainedExpert(expert=expert.requires_grad_(False).eval(), epoch=0, loss=loss)


def log_odds(score: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return a and c ``(L,)`` under which a score + c are the log odds of each label.

    Targets of a label with n₊ rows and n₋ without are (n₊ + 1) / (n₊ + 2) and 1 / (n₋ + 2), so that
    no odds are infinite (Platt 1999, equation 6).

    Args:
        score: ``(N, L)``.
        target: Whether each row has each label, ``(N, L)`` of 0.0 and 1.0.
    """
    rows = target.sum(0)
    without = len(target) - rows
    wanted = torch.where(target > 0, (rows + 1) / (rows + 2), 1 / (without + 2))
    mean, spread = score.mean(0), score.std(0, correction=0).clamp_min(1e-9)
    x = (score - mean) / spread
    a, c = torch.zeros_like(rows), ((rows + 1) / (without + 1)).log()
    for _ in range(STEPS):
        p = torch.sigmoid(a * x + c)
        wrong, weight = p - wanted, (p * (1 - p)).clamp_min(1e-9)
        da, dc = (wrong * x).sum(0) + RIDGE * a, wrong.sum(0)
        aa, ac, cc = (weight * x * x).sum(0) + RIDGE, (weight * x).sum(0), weight.sum(0)
        scale = aa * cc - ac * ac
        a = a - ((cc * da - ac * dc) / scale).clamp(-LARGEST_STEP, LARGEST_STEP)
        c = c - ((aa * dc - ac * da) / scale).clamp(-LARGEST_STEP, LARGEST_STEP)
    return a / spread, c - a * mean / spread
