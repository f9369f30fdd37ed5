"""The nearest-centroid router: logits = −‖z − m_k‖² / 2τ, no training."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor, nn

from ..bus.signals import RouterSignals
from .base import ColumnData, Router


class CentroidRouter(Router):
    """One mean vector per column; τ is the mean squared distance of rows to it, per dimension."""

    kind = "centroid"
    closed_form = True

    def __init__(self, *, width: int, columns: tuple[str, ...], seed: int = 0) -> None:
        super().__init__(width=width, columns=columns, seed=seed)
        self.centroid = nn.Parameter(torch.zeros(len(columns), width))
        self.spread = nn.Parameter(torch.ones(1))

    def forward(self, z: Tensor, signals: RouterSignals | None = None) -> Tensor:
        """Return logits ``(B, K)`` for z ``(B, D)``."""
        # ‖z‖² is the same for every column and cancels in the softmax.
        return (z @ self.centroid.T - 0.5 * self.centroid.square().sum(1)) / self.spread

    def solve(self, columns: Sequence[ColumnData], *, only: Collection[str] | None = None) -> None:
        """Set each column's centroid to the mean of its rows, and τ from all rows."""
        with torch.no_grad():
            distance, rows = 0.0, 0.0
            for data in columns:
                s = data.statistics
                n = s.counts.sum()
                mean = s.sums.sum(0) / n
                if only is None or data.column in only:
                    self.centroid[self.columns.index(data.column)] = mean
                distance += float(s.scatter.trace() - n * mean.square().sum())
                rows += float(n)
            if only is None:
                self.spread.fill_(max(distance / rows / self.width, 1e-6))

    def column_parameters(self) -> tuple[nn.Parameter, ...]:
        """Return the centroids."""
        return (self.centroid,)
