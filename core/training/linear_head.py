"""A linear head over an expert's own labels, solved from sums: no epochs, no step size.

    Δ(z) = β (W z + b)      W, b: ridge regression onto the labels (`routers.least_squares`)

λ and β are those under which the rows, each left out in turn, are likeliest; so no row has to be
kept from learning for their sake.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..bus.experts import Linear
from ..routers.domain_statistics import Statistics
from ..routers.least_squares import PENALTIES, LeastSquares, sharpest
from .expert import TrainedExpert

MOST_ROWS = 2048
"""Most rows that are left out in turn: each costs a product with a (D, D) matrix for every λ."""


def solve_linear_head(z: Tensor, answers: Sequence[str], labels: Sequence[str]) -> TrainedExpert:
    """Solve a linear head.

    Args:
        z: What it reads of each row, ``(N, D)``.
        answers: N labels.
        labels: The labels it may answer, in the order of its logits; one without rows scores 0.
    """
    statistics = Statistics.of_rows(z, answers)
    place = {y: n for n, y in enumerate(statistics.labels)}
    target = torch.tensor([place[y] for y in answers[:MOST_ROWS]])
    best = []
    for penalty in PENALTIES:
        solved = LeastSquares.solve([statistics], penalty=penalty)
        score = solved.left_out(z[:MOST_ROWS], target)
        best.append((*sharpest(score, torch.arange(len(place)), target), solved))
    loss, beta, solved = min(best, key=lambda found: found[0])
    weight, bias = torch.zeros(len(labels), z.shape[1]), torch.zeros(len(labels))
    for n, label in enumerate(labels):
        if label in place:
            weight[n] = beta * solved.weight[place[label]]
            bias[n] = beta * solved.bias[place[label]]
    expert = Linear(W=weight, b=bias, space="labels", labels=tuple(labels))
    return TrainedExpert(expert=expert.requires_grad_(False).eval(), epoch=0, loss=loss)
