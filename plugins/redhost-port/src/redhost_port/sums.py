"""The sums of a card on another backbone: of mapped rows, without reading any."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from redhost.core.routers.domain_statistics import Statistics

__all__ = ["moved", "plus"]


def plus(sums: Statistics, z: Tensor, labels: Sequence[str]) -> Statistics:
    """Return sums with rows ``(N, D)`` added that they do not contain."""
    more = Statistics.of_rows(z, labels)
    names = tuple(sorted({*sums.labels, *more.labels}))
    counts = more.counts.new_zeros(len(names))
    by_label = more.sums.new_zeros(len(names), z.shape[1])
    for part in (sums, more):
        place = torch.tensor([names.index(y) for y in part.labels], dtype=torch.int64)
        counts = counts.index_add(0, place, part.counts)
        by_label = by_label.index_add(0, place, part.sums)
    scatter = sums.scatter + more.scatter
    return Statistics(labels=names, counts=counts, sums=by_label, scatter=scatter)


def moved(sums: Statistics, A: Tensor, c: Tensor, *, spread: Tensor) -> Statistics:
    """Return the sums of the rows mapped to A z + c + e, without reading any row.

        s'_y = A s_y + n_y c,    S' = A S Aᵀ + A s cᵀ + c (A s)ᵀ + N (c cᵀ + E[e eᵀ])

    Args:
        sums: Of rows of D numbers.
        A: ``(D', D)``.
        c: ``(D',)``.
        spread: E[e eᵀ], the residual covariance of the map, ``(D', D')``.
    """
    A, c = A.double(), c.double()
    rows, cross = float(sums.counts.sum()), torch.outer(A @ sums.sums.sum(0), c)
    return Statistics(
        labels=sums.labels,
        counts=sums.counts,
        sums=sums.sums @ A.T + sums.counts[:, None] * c,
        scatter=A @ sums.scatter @ A.T + cross + cross.T + rows * (torch.outer(c, c) + spread),
    )
