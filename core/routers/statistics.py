"""The statistics router: Gaussian discriminants over the experts' labels, in closed form.

With μ_y = s_y / n_y and one shared within-class covariance Σ, shrunk:

    δ_y(z) = μ_yᵀ Σ⁻¹ z − ½ μ_yᵀ Σ⁻¹ μ_y + log π_y,    logit_k(z) = logsumexp over y of k of δ_y(z)

No gradient step. Rows or sums suffice, and experts are added and removed by adding and subtracting.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..bus.bus import BACKBONE
from ..bus.signals import RouterSignals
from .base import ColumnData, LabelledRouter
from .domain_statistics import Statistics, within_covariance
from .label_products import column_scores
from .topk import keep_top


class StatisticsRouter(LabelledRouter):
    """One discriminant for each (column, label); a column's logit is their logsumexp.

    With k, only the k largest logits are kept; 0 keeps all.
    """

    kind = "statistics"
    closed_form = True
    per_label = ("weight", "bias")
    shared = ("precision",)

    options: ClassVar[Mapping[str, type[int] | type[float]]] = {"k": int}

    def __init__(self, *, width: int, columns: tuple[str, ...], seed: int = 0, k: int = 0) -> None:
        super().__init__(width=width, columns=columns, seed=seed)
        self.chosen = min(k, len(columns)) if k > 0 else None
        self.weight = nn.Parameter(torch.zeros(0, width))
        self.bias = nn.Parameter(torch.zeros(0))
        self.precision = nn.Parameter(torch.zeros(width, width))

    def forward(self, z: Tensor, signals: RouterSignals | None = None) -> Tensor:
        """Return logits ``(B, K)`` for z ``(B, D)``."""
        logits = self._logits(z)
        if self.chosen is None:
            return logits
        return keep_top(logits, self.chosen, by=self.expecting(logits))

    def _logits(self, z: Tensor) -> Tensor:
        return column_scores(z, self.weight, self.bias, self._runs)

    def log_density(self, z: Tensor) -> Tensor:
        """Return log Σ_k p_k(z) over the experts, ``(B,)``, adding the term − ½ zᵀ Σ⁻¹ z to δ."""
        experts = [k for k, column in enumerate(self.columns) if column != BACKBONE]
        norm = ((z @ self.precision) * z).sum(1)
        return torch.logsumexp(self._logits(z)[:, experts], dim=1) - 0.5 * norm

    def log_densities(self, z: Tensor) -> Tensor:
        """Return log p_k(z) ``(B, K)``, with the same term."""
        return self._logits(z) - 0.5 * ((z @ self.precision) * z).sum(1, keepdim=True)

    def solve(self, columns: Sequence[ColumnData], *, only: Collection[str] | None = None) -> None:
        """Set Σ⁻¹ and the discriminants; with `only`, keep Σ and set only those columns."""
        if only is None:
            factor = torch.linalg.cholesky(within_covariance([d.statistics for d in columns]))
            self.precision.data = torch.cholesky_inverse(factor).to(torch.float32)
        moving = [d for d in columns if only is None or d.column in only]
        self.replace_rows({d.column: self._discriminants(d.statistics) for d in moving})

    def _discriminants(self, statistics: Statistics) -> tuple[Tensor, Tensor]:
        """Return Σ⁻¹ μ_y ``(Y, D)`` and log π_y − ½ μ_yᵀ Σ⁻¹ μ_y ``(Y,)``, π_y by the counts."""
        weight = statistics.means @ self.precision.detach().to(torch.float64)
        prior = torch.log(statistics.counts / statistics.counts.sum())
        bias = prior - 0.5 * (weight * statistics.means).sum(1)
        return weight.to(torch.float32), bias.to(torch.float32)
