"""The quadratic router: the statistics router, but every domain has a covariance of its own.

    Σ_k = (1 − γ) Σ + γ Σ_k^own, shrunk         regularised discriminants, Friedman 1989
    δ_y(z) = log π_y − ½ log |Σ_k| − ½ (z − μ_y)ᵀ Σ_k⁻¹ (z − μ_y)
    logit_k(z) = logsumexp over y of k of δ_y(z)

Domains differ in how they spread, not only in where they lie: a background of everything else is
wide where an expert's texts are narrow. Still sums alone, still no gradient step.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from ..statistics import Statistics, shrunk, within_scatter
from .base import ColumnData, Router, spans

__all__ = ["QuadraticRouter"]

OWN = 0.2
"""γ, the share of a domain's own covariance; chosen on validation rows of 20 Newsgroups, where
anything from .1 to .4 is within a third of a point."""


NUMBERS = 2**18
"""At most so many numbers at once in a forward pass, where one column alone needs no more: what
stays in the caches is up to five times as fast."""


class QuadraticRouter(Router):
    """One Gaussian for each (column, label), with one covariance for each column.

    ``whitener`` holds A_k with A_kᵀ A_k = Σ_k⁻¹, ``(K, D, D)``; ``center`` A_k μ_y, ``(Y, D)``;
    ``bias`` log π_y − ½ log |Σ_k|, ``(Y,)``; ``covariance`` the pooled Σ, ``(D, D)``, and
    ``freedom`` the number of degrees behind it.
    """

    kind = "quadratic"
    closed_form = True

    def __init__(self, *, width: int, columns: tuple[str, ...], seed: int = 0) -> None:
        super().__init__(width=width, columns=columns, seed=seed)
        self.whitener = nn.Parameter(torch.zeros(len(columns), width, width))
        self.center = nn.Parameter(torch.zeros(0, width))
        self.bias = nn.Parameter(torch.zeros(0))
        self.covariance = nn.Parameter(torch.zeros(width, width))
        self.register_buffer("freedom", torch.ones(1))
        self.register_buffer("owner", torch.zeros(0, dtype=torch.int64))
        self._spans = spans(self.owner, len(columns))

    owner: Tensor
    freedom: Tensor

    def forward(self, z: Tensor, evidence: Tensor | None = None) -> Tensor:
        """Return logits ``(B, K)`` for z ``(B, D)``."""
        labels = max(1, NUMBERS // max(1, z.numel()))
        return torch.cat([self._some(z, a, b) for a, b in self._pieces(labels)], dim=-1)

    def _pieces(self, labels: int) -> Iterator[tuple[int, int]]:
        """Yield (first column, past the last) of runs of one column, or with so few labels."""
        start = 0
        for k in range(1, len(self.columns) + 1):
            full = k < len(self.columns) and self._spans[k][1] - self._spans[start][0] > labels
            if full or k == len(self.columns):
                yield start, k
                start = k

    def _some(self, z: Tensor, first: int, past: int) -> Tensor:
        """Return the logits of a run of columns, ``(B, past − first)``."""
        low, high = self._spans[first][0], self._spans[past - 1][1]
        white = torch.matmul(z, self.whitener[first:past].mT)  # (k, B, D)
        off = white[self.owner[low:high] - first] - self.center[low:high, None]  # (Y, B, D)
        density = self.bias[low:high, None] - 0.5 * off.square().sum(-1)  # (Y, B)
        each = [density[a - low : b - low] for a, b in self._spans[first:past]]
        return torch.stack([torch.logsumexp(d, dim=0) for d in each], dim=-1)

    def solve(self, columns: Sequence[ColumnData], *, only: Collection[str] | None = None) -> None:
        """Set every column's Gaussians; with `only`, the pooled Σ stays and only those move."""
        if only is None:
            scatter, freedom = within_scatter([d.statistics for d in columns])
            self.covariance.data = (scatter / freedom).to(torch.float32)
            self.freedom = torch.tensor([freedom])
        moving = [d for d in columns if only is None or d.column in only]
        new = {self.columns.index(d.column) for d in moving}
        kept = torch.tensor([int(k) not in new for k in self.owner], dtype=torch.bool)
        centers, biases, owners = [self.center[kept]], [self.bias[kept]], [self.owner[kept]]
        for data in moving:
            k = self.columns.index(data.column)
            center, bias = self._gaussians(k, data.statistics)
            centers.append(center)
            biases.append(bias)
            owners.append(torch.full((len(bias),), k))
        owner, order = torch.sort(torch.cat(owners), stable=True)  # whoever moved last
        self.center.data = torch.cat(centers).detach()[order]
        self.bias.data = torch.cat(biases).detach()[order]
        self._own(owner)

    def _gaussians(self, k: int, statistics: Statistics) -> tuple[Tensor, Tensor]:
        """Set A_k; return A_k μ_y ``(Y, D)`` and the biases ``(Y,)``, π_y by the counts."""
        scatter, own = within_scatter([statistics])
        pooled = self.covariance.detach().to(torch.float64)
        freedom = (1 - OWN) * float(self.freedom) + OWN * own
        factor = torch.linalg.cholesky(
            shrunk((1 - OWN) * pooled + OWN * scatter / own, freedom=freedom)
        )
        unit = torch.eye(self.width, dtype=torch.float64)
        whitener = torch.linalg.solve_triangular(factor, unit, upper=False)
        with torch.no_grad():
            self.whitener[k] = whitener
        prior = torch.log(statistics.counts / statistics.counts.sum())
        bias = prior - factor.diagonal().log().sum()
        return (statistics.means @ whitener.T).to(torch.float32), bias.to(torch.float32)

    def _own(self, owner: Tensor) -> None:
        self.owner, self._spans = owner, spans(owner, len(self.columns))

    def column_parameters(self) -> tuple[nn.Parameter, ...]:
        """Return the whiteners, which have one row a column; centers and biases count labels."""
        return (self.whitener,)

    def adopt(self, parent: Router, *, keep: Collection[str]) -> None:
        """Take over the pooled covariance and the Gaussians of the columns in `keep`."""
        if not isinstance(parent, QuadraticRouter):
            raise TypeError(f"expected a quadratic router, found {parent.kind}")
        names = [parent.columns[int(k)] for k in parent.owner]
        kept = torch.tensor([name in keep for name in names], dtype=torch.bool)
        self.covariance.data = parent.covariance.data.clone()
        self.freedom = parent.freedom.clone()
        self.center.data, self.bias.data = parent.center.data[kept], parent.bias.data[kept]
        owner = [self.columns.index(name) for name in names if name in keep]
        self._own(torch.tensor(owner, dtype=torch.int64))
        with torch.no_grad():
            for name in keep:
                place = parent.columns.index(name)
                self.whitener[self.columns.index(name)] = parent.whitener[place]

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Set the weights from a file, which alone knows the number of labels."""
        for name in ("whitener", "center", "bias", "covariance"):
            getattr(self, name).data = tensors[name].clone()
        self._own(tensors["owner"].clone())
        self.freedom = tensors["freedom"].clone()
