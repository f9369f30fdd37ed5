"""The statistics router: Gaussian discriminants over the experts' labels, in closed form.

μ_y = s_y / n_y and one shared within-class covariance Σ, shrunk; then

    δ_y(z) = μ_yᵀ Σ⁻¹ z − ½ μ_yᵀ Σ⁻¹ μ_y + log π_y,    logit_k(z) = logsumexp over y of k of δ_y(z)

No gradient step; from rows or from sums alone; adding and removing experts adds and subtracts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor, nn

from ..statistics import within_covariance
from .base import ColumnData, Router

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

    owner: Tensor

    def forward(self, z: Tensor) -> Tensor:
        """Return logits ``(B, K)`` for z ``(B, D)``."""
        delta = nn.functional.linear(z, self.weight, self.bias)  # (B, Y)
        parts = [torch.logsumexp(delta[:, self.owner == k], -1) for k in range(len(self.columns))]
        return torch.stack(parts, dim=-1)

    def solve(self, columns: Sequence[ColumnData], *, parent: Router | None = None) -> None:
        """Set the discriminants of the given columns; Σ stays the parent's where there is one."""
        statistics = [data.statistics for data in columns]
        if parent is None:
            precision = torch.linalg.inv(within_covariance(statistics))
            self.precision.data = precision.to(torch.float32)
        precision = self.precision.detach().to(torch.float64)
        new = {self.columns.index(data.column) for data in columns}
        kept = torch.tensor([int(k) not in new for k in self.owner], dtype=torch.bool)
        weights, biases, owners = (
            [self.weight.data[kept]],
            [self.bias.data[kept]],
            [self.owner[kept]],
        )
        for data in columns:
            s = data.statistics
            weight = s.means @ precision  # (Y, D)
            prior = torch.log(s.counts / s.counts.sum())
            bias = prior - 0.5 * (weight * s.means).sum(-1)
            weights.append(weight.to(torch.float32))
            biases.append(bias.to(torch.float32))
            owners.append(torch.full((len(s.labels),), self.columns.index(data.column)))
        self.weight.data, self.bias.data = torch.cat(weights), torch.cat(biases)
        self.owner = torch.cat(owners)

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
        self.owner = torch.tensor(owner, dtype=torch.int64)

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Set the weights from a file, which alone knows the number of labels."""
        for name in ("weight", "bias", "precision"):
            getattr(self, name).data = tensors[name].clone()
        self.owner = tensors["owner"].clone()
