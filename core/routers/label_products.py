"""Scores by label as batched products: log Σ over y of k of exp(w_yᵀ z + b_y) for each column k.

Adjacent columns with the same number of labels form one batch. Each product in it has the same
shape for any number of columns, so its result is bitwise identical: a column's scores do not depend
on the labels of others. For 10,000 columns of one label this is one call instead of 10,000.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

import torch
from torch import Tensor

Runs = Sequence[tuple[int, int]]
"""(number of columns, labels of each) for every run of adjacent columns with as many labels."""


def runs_of(spans: Iterable[tuple[int, int]]) -> Runs:
    """Return the runs of columns, given the range of rows of each column."""
    counts = (past - first for first, past in spans)
    return [(sum(1 for _ in run), labels) for labels, run in groupby(counts)]


def column_scores(
    z: Tensor, weight: Tensor, bias: Tensor, runs: Runs, *, added: Tensor | None = None
) -> Tensor:
    """Return the scores ``(B, K)`` of z ``(B, D)``.

    Args:
        z: Bus vectors.
        weight: One row per label, column after column, ``(Y, D)``.
        bias: One number per label, in the same order, ``(Y,)``.
        runs: The runs of columns that the rows belong to.
        added: What is added to each label's product, ``(B, Y)``; by default nothing.
    """
    sizes, scores = [n * labels for n, labels in runs], list[Tensor]()
    more = bias[None] if added is None else bias + added
    parts = zip(runs, torch.split(weight, sizes), torch.split(more, sizes, dim=1), strict=True)
    for (n, labels), w, b in parts:
        # A batch of one takes another kernel with other rounding: use a batch of two.
        each = w.reshape(n, labels, w.shape[1]).expand(max(n, 2), -1, -1)
        # (n, B, labels)
        products = (z @ each.mT)[:n] + b.reshape(len(b), n, labels).transpose(0, 1)
        scores.append(products.logsumexp(-1))
    return torch.cat(scores).T.contiguous()
