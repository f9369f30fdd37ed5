"""The quadratic router: the statistics router with a separate covariance for every domain.

    Σ_k = (1 − γ) Σ + γ Σ_k^own, shrunk         regularised discriminants, Friedman 1989
    δ_y(z) = log π_y − ½ log |Σ_k| − ½ (z − μ_y)ᵀ Σ_k⁻¹ (z − μ_y)
    logit_k(z) = logsumexp over y of k of δ_y(z)

Domains differ in spread as well as in location: a background of all other texts is wide where an
expert's texts are narrow. It too needs only sums, and no gradient step.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..bus.bus import BACKBONE
from ..bus.signals import RouterSignals
from .base import ColumnData, LabelledRouter
from .domain_statistics import Statistics, shrunk, within_scatter

OWN = 0.2
"""γ, the weight of a domain's own covariance; chosen on validation rows of 20 Newsgroups, where
all values from .1 to .4 are within a third of a point."""


NUMBERS = 2**18
"""Limit on the numbers held at once in a forward pass, unless a single column needs more. What fits
into the CPU's caches is up to five times as fast."""


class QuadraticRouter(LabelledRouter):
    """One Gaussian for each (column, label), with one covariance for each column.

    ``whitener`` holds A_k with A_kᵀ A_k = Σ_k⁻¹, ``(K, D, D)``; ``center`` A_k μ_y, ``(Y, D)``;
    ``bias`` log π_y − ½ log |Σ_k|, ``(Y,)``; ``covariance`` the pooled Σ, ``(D, D)``, and
    ``freedom`` its degrees of freedom.
    """

    kind = "quadratic"
    closed_form = True
    per_label = ("center", "bias")
    per_column: ClassVar[tuple[str, ...]] = ("whitener",)
    shared = ("covariance", "freedom")

    def __init__(self, *, width: int, columns: tuple[str, ...], seed: int = 0) -> None:
        super().__init__(width=width, columns=columns, seed=seed)
        self.whitener = nn.Parameter(torch.zeros(len(columns), width, width))
        self.center = nn.Parameter(torch.zeros(0, width))
        self.bias = nn.Parameter(torch.zeros(0))
        self.covariance = nn.Parameter(torch.zeros(width, width))
        self.register_buffer("freedom", torch.ones(1))

    freedom: Tensor

    def forward(self, z: Tensor, signals: RouterSignals | None = None) -> Tensor:
        """Return logits ``(B, K)`` for z ``(B, D)``."""
        logits = list[Tensor]()
        for first, past in self._pieces(max(1, NUMBERS // max(1, z.numel()))):
            low, high = self._spans[first][0], self._spans[past - 1][1]
            white = torch.matmul(z, self.whitener[first:past].mT)  # (k, B, D)
            off = white[self.owner[low:high] - first] - self.center[low:high, None]  # (Y, B, D)
            density = self.bias[low:high, None] - 0.5 * off.square().sum(-1)  # (Y, B)
            each = (density[a - low : b - low] for a, b in self._spans[first:past])
            logits += [torch.logsumexp(d, dim=0) for d in each]
        return torch.stack(logits, dim=1)

    def log_density(self, z: Tensor) -> Tensor:
        """Return log Σ_k p_k(z) over the experts, without the backbone column, ``(B,)``."""
        experts = [k for k, column in enumerate(self.columns) if column != BACKBONE]
        return torch.logsumexp(self.log_densities(z)[:, experts], dim=1)

    def log_densities(self, z: Tensor) -> Tensor:
        """Return log p_k(z) ``(B, K)``: this class's logits, also in subclasses."""
        return QuadraticRouter.forward(self, z)

    def _pieces(self, labels: int) -> Iterator[tuple[int, int]]:
        """Yield runs of columns with at most so many labels in all, or single columns."""
        first = 0
        for past in range(1, len(self.columns) + 1):
            last = past == len(self.columns)
            if last or self._spans[past][1] - self._spans[first][0] > labels:
                yield first, past
                first = past

    def solve(self, columns: Sequence[ColumnData], *, only: Collection[str] | None = None) -> None:
        """Set every column's Gaussians; with `only`, keep the pooled Σ and set only those."""
        if only is None:
            scatter, freedom = within_scatter([d.statistics for d in columns])
            self.covariance.data = (scatter / freedom).to(torch.float32)
            self.freedom = torch.tensor([freedom])
        moving = [d for d in columns if only is None or d.column in only]
        self.replace_rows({d.column: self._gaussians(d.column, d.statistics) for d in moving})

    def _gaussians(self, column: str, statistics: Statistics) -> tuple[Tensor, Tensor]:
        """Set A_k; return A_k μ_y ``(Y, D)`` and the biases ``(Y,)``, π_y by the counts."""
        scatter, own_freedom = within_scatter([statistics])
        pooled = self.covariance.detach().to(torch.float64)
        freedom = (1 - OWN) * float(self.freedom) + OWN * own_freedom
        factor = torch.linalg.cholesky(
            shrunk((1 - OWN) * pooled + OWN * scatter / own_freedom, freedom=freedom)
        )
        whitener = torch.linalg.solve_triangular(
            factor, torch.eye(len(factor)).double(), upper=False
        )
        with torch.no_grad():
            self.whitener[self.columns.index(column)] = whitener
        prior = torch.log(statistics.counts / statistics.counts.sum())
        bias = prior - factor.diagonal().log().sum()
        return (statistics.means @ whitener.T).to(torch.float32), bias.to(torch.float32)
