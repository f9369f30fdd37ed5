"""Scores by label as batched products: log Σ over y of k of exp(w_yᵀ z + b_y) for each column k.

Columns beside each other with as many labels are one batch, in which each product has the same
shape however many there are, and so the same bits: nobody else's labels change a column's. Among
10,000 columns of one label that is one call in place of 10,000.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

import torch
from torch import Tensor

Runs = Sequence[tuple[int, int]]
"""(columns, labels of each) of the columns beside each other that have as many."""


def runs_of(spans: Iterable[tuple[int, int]]) -> Runs:
    """Return the runs of columns, given the first row and past the last row of each."""
    counts = (past - first for first, past in spans)
    return [(sum(1 for _ in same), labels) for labels, same in groupby(counts)]


def column_scores(z: Tensor, weight: Tensor, bias: Tensor, runs: Runs) -> Tensor:
    """Return the scores ``(B, K)`` of z ``(B, D)``.

    Args:
        z: Bus vectors.
        weight: A row for each label, column after column, ``(Y, D)``.
        bias: Likewise, ``(Y,)``.
        runs: Whose the rows are.
    """
    sizes, scores = [n * labels for n, labels in runs], list[Tensor]()
    parts = zip(runs, torch.split(weight, sizes), torch.split(bias, sizes), strict=True)
    for (n, labels), w, b in parts:
        # A batch of one is computed as no batch, in other bits: one stands there twice.
        each = w.reshape(n, labels, w.shape[1]).expand(max(n, 2), -1, -1)
        products = (z @ each.mT)[:n] + b.reshape(n, 1, labels)  # (n, B, labels)
        scores.append(products.logsumexp(-1))
    return torch.cat(scores).T.contiguous()
