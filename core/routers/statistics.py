"""The statistics router: Gaussian discriminants over the experts' labels, in closed form.

μ_y = s_y / n_y and one shared within-class covariance Σ, shrunk; then

    δ_y(z) = μ_yᵀ Σ⁻¹ z − ½ μ_yᵀ Σ⁻¹ μ_y + log π_y,    logit_k(z) = logsumexp over y of k of δ_y(z)

No gradient step; from rows or from sums alone; adding and removing experts adds and subtracts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor, nn

from ..statistics import Statistics, within_covariance
from .base import ColumnData, Router, spans

__all__ = ["StatisticsRouter"]


class StatisticsRouter(Router):
    """One discriminant for each (column, label); a column's logit is their logsumexp."""

    kind = "statistics"
    closed_form = True

    def __init__(self, *, width: int, columns: tuple[str, ...], seed: int = 0) -> None:
        super().__init__(width=width, columns=columns, seed=seed)
        self.weight = nn.Parameter(torch.zeros(0, width))
        self.bias = nn.Parameter(torch.zeros(0))
        self.precision = nn.Parameter(torch.zeros(width, width))
        self.register_buffer("owner", torch.zeros(0, dtype=torch.int64))
        self._spans = spans(self.owner, len(columns))

    owner: Tensor

    def forward(self, z: Tensor, evidence: Tensor | None = None) -> Tensor:
        """Return logits ``(B, K)`` for z ``(B, D)``."""
        return torch.stack([self._column(z, k) for k in range(len(self.columns))], dim=-1)

    def _column(self, z: Tensor, k: int) -> Tensor:
        """Return logit_k ``(B,)``; a product of its own, whose bits nobody else's labels change."""
        mine = slice(*self._spans[k])
        delta = nn.functional.linear(z, self.weight[mine], self.bias[mine])  # (B, Y_k)
        return torch.logsumexp(delta, dim=-1)

    def solve(self, columns: Sequence[ColumnData], *, only: Collection[str] | None = None) -> None:
        """Set Σ⁻¹ and the discriminants; with `only`, Σ stays and only those columns move."""
        if only is None:
            precision = torch.linalg.inv(within_covariance([d.statistics for d in columns]))
            self.precision.data = precision.to(torch.float32)
        moving = [d for d in columns if only is None or d.column in only]
        new = {self.columns.index(d.column) for d in moving}
        kept = torch.tensor([int(k) not in new for k in self.owner], dtype=torch.bool)
        weights, biases, owners = [self.weight[kept]], [self.bias[kept]], [self.owner[kept]]
        for data in moving:
            weight, bias = self._discriminants(data.statistics)
            weights.append(weight)
            biases.append(bias)
            owners.append(torch.full((len(weight),), self.columns.index(data.column)))
        owner, order = torch.sort(torch.cat(owners), stable=True)  # whoever moved last
        self.weight.data = torch.cat(weights).detach()[order]
        self.bias.data = torch.cat(biases).detach()[order]
        self._own(owner)

    def _discriminants(self, statistics: Statistics) -> tuple[Tensor, Tensor]:
        """Return Σ⁻¹ μ_y ``(Y, D)`` and log π_y − ½ μ_yᵀ Σ⁻¹ μ_y ``(Y,)``, π_y by the counts."""
        weight = statistics.means @ self.precision.detach().to(torch.float64)
        prior = torch.log(statistics.counts / statistics.counts.sum())
        bias = prior - 0.5 * (weight * statistics.means).sum(-1)
        return weight.to(torch.float32), bias.to(torch.float32)

    def _own(self, owner: Tensor) -> None:
        self.owner, self._spans = owner, spans(owner, len(self.columns))

    def column_parameters(self) -> tuple[nn.Parameter, ...]:
        """Return nothing: rows count labels, not columns; see `adopt`."""
        return ()

    def adopt(self, parent: Router, *, keep: Collection[str]) -> None:
        """Take over the parent's covariance and the discriminants of the columns in `keep`."""
        if not isinstance(parent, StatisticsRouter):
            raise TypeError(f"expected a statistics router, found {parent.kind}")
        names = [parent.columns[int(k)] for k in parent.owner]
        kept = torch.tensor([name in keep for name in names], dtype=torch.bool)
        self.precision.data = parent.precision.data.clone()
        self.weight.data = parent.weight.data[kept]
        self.bias.data = parent.bias.data[kept]
        owner = [self.columns.index(name) for name in names if name in keep]
        self._own(torch.tensor(owner, dtype=torch.int64))

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Set the weights from a file, which alone knows the number of labels."""
        for name in ("weight", "bias", "precision"):
            getattr(self, name).data = tensors[name].clone()
        self._own(tensors["owner"].clone())
