"""Sufficient statistics of a domain, which a card can ship instead of rows.

Per label y: n_y and s_y = Σ z; for the whole domain S = Σ z zᵀ. Sums of several experts add up:
adding an expert adds its sums, removing it subtracts them exactly, and no text leaves its author
(`MATH`: statistics router).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """Sums over the rows of one domain.

    Attributes:
        labels: The labels with rows, Y of them.
        counts: n_y, ``(Y,)``.
        sums: s_y = Σ z over the rows of y, ``(Y, D)``.
        scatter: S = Σ z zᵀ over all rows, ``(D, D)``.
    """

    labels: tuple[str, ...]
    counts: Tensor
    sums: Tensor
    scatter: Tensor

    @classmethod
    def of_rows(cls, z: Tensor, labels: Sequence[str]) -> Statistics:
        """Sum the rows ``(N, D)`` with their labels, in float64 and in the rows' order."""
        names = tuple(sorted(set(labels)))
        place = {name: n for n, name in enumerate(names)}
        index = torch.tensor([place[y] for y in labels], dtype=torch.int64, device=z.device)
        wide = z.to(torch.float64)
        sums = wide.new_zeros(len(names), z.shape[1]).index_add(0, index, wide)
        return cls(
            labels=names,
            counts=torch.bincount(index, minlength=len(names)).to(torch.float64),
            sums=sums,
            scatter=wide.T @ wide,
        )

    @classmethod
    def union(cls, parts: Sequence[Statistics]) -> Statistics:
        """Return the sums of several domains, their labels concatenated, added in this order."""
        return cls(
            labels=tuple(y for p in parts for y in p.labels),
            counts=torch.cat([p.counts for p in parts]),
            sums=torch.cat([p.sums for p in parts]),
            scatter=reduce(torch.add, [p.scatter for p in parts]),
        )

    def first(self, width: int) -> Statistics:
        """Return the statistics of the first `width` dimensions of z."""
        return Statistics(
            labels=self.labels,
            counts=self.counts,
            sums=self.sums[:, :width],
            scatter=self.scatter[:width, :width],
        )

    def times(self, factor: float) -> Statistics:
        """Return the sums, scaled as if each row occurred `factor` times."""
        return Statistics(
            labels=self.labels,
            counts=self.counts * factor,
            sums=self.sums * factor,
            scatter=self.scatter * factor,
        )

    def without(self, z: Tensor, labels: Sequence[str]) -> Statistics:
        """Return the sums without rows ``(N, D)`` that they contain; all labels stay."""
        less = Statistics.of_rows(z, labels)
        place = torch.tensor([self.labels.index(y) for y in less.labels], dtype=torch.int64)
        return Statistics(
            labels=self.labels,
            counts=self.counts.index_add(0, place, -less.counts),
            sums=self.sums.index_add(0, place, -less.sums),
            scatter=self.scatter - less.scatter,
        )

    @property
    def means(self) -> Tensor:
        """μ_y = s_y / n_y, ``(Y, D)``."""
        return self.sums / self.counts[:, None]

    def distance(self, z: Tensor, labels: Sequence[str]) -> float:
        """Return how many standard deviations further rows are from the sums than expected.

            r = max( Σ_y n_y ‖m_y − μ_y‖² / Y,  ‖Σ_y n_y (m_y − μ_y)‖² / n ) / tr Σ
            (r / (1 + n / N) − 1) √(ν / 2),  ν = (tr Σ)² / tr Σ²

        n_y and m_y are counts and means of the n given rows ``(n, D)`` with Y labels. Σ is the
        within-label covariance and ν roughly its number of directions. For rows like the N rows of
        the sums, r / (1 + n / N) is about χ²_ν / ν (Satterthwaite 1946). The first term is large
        for rows of other labels, the second for rows that all lie to one side. With fewer than two
        rows per label Σ is unknown, and the distance is 0.
        """
        count = float(self.counts.sum())
        if count < 2 * len(self.labels):
            return 0.0
        place = torch.tensor([self.labels.index(y) for y in labels])
        off = torch.zeros_like(self.sums).index_add(0, place, z.double() - self.means[place])
        rows = torch.bincount(place, minlength=len(self.labels))
        of_labels = (off.square().sum(1) / rows.clamp(min=1)).sum() / rows.gt(0).sum()
        of_all = off.sum(0).square().sum() / len(place)
        scatter, freedom = within_scatter([self])
        trace = float((scatter.trace() / freedom).clamp(min=1e-6))
        directions = trace**2 / max(float(torch.linalg.vector_norm(scatter) / freedom) ** 2, 1e-12)
        ratio = float(torch.maximum(of_labels, of_all)) / trace
        return (ratio / (1 + len(place) / count) - 1) * math.sqrt(directions / 2)

    def sample(self, *, rows: int, generator: torch.Generator) -> tuple[Tensor, tuple[str, ...]]:
        """Draw rows from the Gaussians N(μ_y, Σ) of the statistics, y in proportion to n_y.

        Returns:
            z ``(rows, D)`` in float32 and the label of each row.
        """
        covariance = within_covariance([self])
        factor = torch.linalg.cholesky(covariance)
        share = self.counts / self.counts.sum()
        index = torch.multinomial(share, rows, replacement=True, generator=generator)
        noise = torch.randn(rows, self.sums.shape[1], dtype=torch.float64, generator=generator)
        z = self.means[index] + noise @ factor.T
        return z.to(torch.float32), tuple(self.labels[int(i)] for i in index)


def within_covariance(parts: Sequence[Statistics]) -> Tensor:
    """Return the pooled within-class covariance, shrunk: ``(D, D)``, positive definite, float64.

    Args:
        parts: One statistics per domain, summed in the order given.
    """
    scatter, freedom = within_scatter(parts)
    return shrunk(scatter / freedom, freedom=freedom)


def within_scatter(parts: Sequence[Statistics]) -> tuple[Tensor, float]:
    """Return W = Σ_i S_i − Σ_y s_y s_yᵀ / n_y, ``(D, D)``, and its degrees of freedom N − Y."""
    scatter = reduce(torch.add, [p.scatter for p in parts])
    between = reduce(torch.add, [p.means.T @ p.sums for p in parts])
    rows = float(sum(float(p.counts.sum()) for p in parts))
    classes = sum(len(p.labels) for p in parts)
    return scatter - between, max(rows - classes, 1.0)


def shrunk(covariance: Tensor, *, freedom: float) -> Tensor:
    """Return (1 − ρ) Σ + ρ tr(Σ)/D · I ``(D, D)``, symmetric, with ρ by `oas_shrinkage`."""
    scale = covariance.trace() / len(covariance)
    rho = oas_shrinkage(covariance, freedom=freedom)
    shrunken = (covariance + covariance.T).mul_((1 - rho) / 2)
    shrunken.diagonal().add_(max(rho, 1e-3) * torch.clamp(scale, min=1e-6))
    return shrunken


def oas_shrinkage(covariance: Tensor, *, freedom: float) -> float:
    """Return ρ of the oracle approximating shrinkage (Chen et al. 2010, equation 23).

    Unlike Ledoit–Wolf's, it needs only the covariance itself and no rows, so a host that holds
    nothing but statistics can compute it.

    Args:
        covariance: S, ``(D, D)``.
        freedom: n, the degrees of freedom behind S.

    Returns:
        ρ in [0, 1].
    """
    width = covariance.shape[0]
    square = float(torch.linalg.vector_norm(covariance)) ** 2
    trace2 = float(covariance.trace()) ** 2
    above = (1 - 2 / width) * square + trace2
    below = (freedom + 1 - 2 / width) * (square - trace2 / width)
    return 1.0 if below <= 0 else min(1.0, above / below)
