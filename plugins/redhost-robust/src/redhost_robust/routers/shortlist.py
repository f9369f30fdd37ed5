"""The shortlist router: two levels, for hosts with too many experts to run all on every row.

    s_k(z)  = μ_kᵀ Σ⁻¹ z − ½ μ_kᵀ Σ⁻¹ μ_k            every column: one product, (B, K)
    M(z)    = the m columns of largest s_k          the shortlist
    g_k(z)  = log N(z; μ_k, Σ_k)                    only k in M(z)
    logit_k = g_k + log N(e_k; home_k) − log N(e_k; away_k)
    α       = softmax over the k largest, zero elsewhere

μ_k is the mean of column k's rows, Σ the covariance within columns, shrunk. Σ_k mixes in the
column's own (Friedman 1989), of which r directions are kept. With A whitening Σ (A Σ Aᵀ = I):

    A Σ_k Aᵀ = c_k I + U_kᵀ diag(d_k) U_k,   U_k (r, D) orthonormal

A column thus needs (r + 2) · D numbers, where the quadratic router needs D². Only experts on the
shortlist are queried (`redhost.core.bus.signals`); any other expert costs only its row of s. Closed
form.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from redhost.core.bus.signals import QUERY, RouterSignals
from redhost.core.routers.base import ColumnData, Router
from redhost.core.routers.domain_statistics import Statistics, shrunk
from redhost.core.routers.evidence import FLOOR, log_normal
from redhost.core.routers.topk import keep_top, top_mask

OWN = 0.5
"""Largest share of a column's own covariance in Σ_k: ½ ν / (ν + D) for ν degrees of freedom. On
gate rows of 20 Newsgroups .2 is best with 256 rows a team, .4 with all rows (D = 384)."""

AXES = 32
"""r; there, 32 directions lose at most a point compared with all of them, 8 lose up to three."""

NUMBERS = 2**19
"""Limit on the numbers of the axes gathered at once; fitting the caches is twice as fast."""

UNKNOWN = (0.0, 1.0, 0.0, 1.0)
"""Moments of a column without confidences: equal at home and away, so the ratio is neutral."""


class ShortlistRouter(Router):
    """A linear discriminant for each column, then the confidences of the top columns.

    Args:
        width: D.
        columns: The columns.
        seed: Unused: the solution is in closed form.
        k: How many columns get a weight.
        m: How many experts are queried before the k are chosen.
    """

    kind = "shortlist"
    closed_form = True
    reads = frozenset({QUERY})
    options: ClassVar[Mapping[str, type[int] | type[float]]] = {"k": int, "m": int}

    def __init__(
        self,
        *,
        width: int,
        columns: tuple[str, ...],
        seed: int = 0,
        k: int = 2,
        m: int = 8,
    ) -> None:
        super().__init__(width=width, columns=columns, seed=seed)
        self.k = max(1, min(k, len(columns)))
        self.m = max(self.k, min(m, len(columns)))
        self.chosen = self.k
        r = min(AXES, width)
        self.weight = nn.Parameter(torch.zeros(len(columns), width))
        self.bias = nn.Parameter(torch.zeros(len(columns)))
        self.center = nn.Parameter(torch.zeros(len(columns), width))
        self.axes = nn.Parameter(torch.zeros(len(columns), r, width))
        self.pull = nn.Parameter(torch.zeros(len(columns), r))
        self.normal = nn.Parameter(torch.tensor([[1.0, 0.0]]).repeat(len(columns), 1))
        self.voice = nn.Parameter(torch.tensor([UNKNOWN]).repeat(len(columns), 1))
        self.whitener = nn.Parameter(torch.eye(width))

    def forward(self, z: Tensor, signals: RouterSignals | None = None) -> Tensor:
        """Return logits ``(B, K)``, all but k of them −∞, for z ``(B, D)``; query the shortlist."""
        mask = top_mask(self.expecting(self.scores(z)), self.m)
        confidences = torch.zeros_like(mask, dtype=z.dtype)  # (B, K)
        if signals is not None:
            confidences = signals.query(mask)
        home_mean, home_var, away_mean, away_var = self.voice.unbind(dim=1)
        ratio = log_normal(confidences, home_mean, home_var) - log_normal(
            confidences, away_mean, away_var
        )
        logits = self.densities(z, mask) + ratio
        return keep_top(logits, self.k, by=self.expecting(logits))

    def scores(self, z: Tensor) -> Tensor:
        """Return s ``(B, K)``, the first level."""
        return nn.functional.linear(z, self.weight, self.bias)

    def densities(self, z: Tensor, mask: Tensor) -> Tensor:
        """Return g ``(B, K)``, the second level, where the mask is set; −∞ elsewhere."""
        white = z @ self.whitener.T
        g = white.new_full(mask.shape, -torch.inf)
        some = max(1, NUMBERS // self.axes[0].numel())
        for pairs in torch.split(mask.nonzero(), some):
            r, c = pairs.unbind(dim=1)
            off = white[r] - self.center[c]  # (P, D)
            along = torch.einsum("pd,prd->pr", off, self.axes[c])
            scale, level = self.normal[c].unbind(dim=1)
            distance = scale * off.square().sum(-1) - (self.pull[c] * along.square()).sum(-1)
            g[r, c] = level - 0.5 * distance
        return g

    def solve(self, columns: Sequence[ColumnData], *, only: Collection[str] | None = None) -> None:
        """Set discriminants, densities and moments; with `only`, only of those columns."""
        moving = [k for k, d in enumerate(columns) if only is None or d.column in only]
        with torch.no_grad():
            if only is None:
                factor = torch.linalg.cholesky(_within([d.statistics for d in columns]))
                unit = torch.eye(self.width, dtype=torch.float64)
                self.whitener.copy_(torch.linalg.solve_triangular(factor, unit, upper=False))
            for k in moving:
                self._place(k, columns[k].statistics)
            self.voice[moving] = self._moments(columns, moving)

    def _place(self, k: int, statistics: Statistics) -> None:
        """Set both levels of one column from its sums."""
        whitener, n, mean = self.whitener.double(), statistics.counts.sum(), _mean(statistics)
        center = whitener @ mean
        self.weight[k] = whitener.T @ center
        self.bias[k] = -0.5 * center @ center
        self.center[k] = center
        spread = whitener @ (statistics.scatter / n - torch.outer(mean, mean)) @ whitener.T
        freedom = max(float(n) - 1, 1.0)
        own = OWN * freedom / (freedom + self.width)
        size, axes = torch.linalg.eigh(spread)  # ascending
        r = self.axes.shape[1]
        rest = size[:-r].mean().clamp_min(0) if r < self.width else size.new_zeros(())
        level = 1 - own + own * rest  # variance off the axes
        along = level + own * (size[-r:] - rest).clamp_min(0)  # variance along each axis
        self.axes[k] = axes[:, -r:].T
        self.pull[k] = 1 / level - 1 / along
        self.normal[k, 0] = 1 / level
        self.normal[k, 1] = -0.5 * (self.width * level.log() + (along / level).log().sum())

    def _moments(self, columns: Sequence[ColumnData], moving: Sequence[int]) -> Tensor:
        """Return mean and variance of moving columns' confidences, at home and away, ``(M, 4)``.

        Away are the rows of other columns that have this column on their shortlist: no other rows
        will ever query it.
        """
        who = torch.zeros(len(self.columns), dtype=torch.bool)
        who[list(moving)] = True
        home, away = _Moments(len(self.columns)), _Moments(len(self.columns))
        for k, data in enumerate(columns):
            if data.signals is None:
                continue
            mask = top_mask(self.scores(data.z), self.m)
            mask[:, k] = True
            mask &= who
            if mask.any():
                confidences, mine = data.signals.query(mask), torch.zeros_like(who)
                mine[k] = True
                home.add(confidences, mask & mine)
                away.add(confidences, mask & ~mine)
        normal = torch.cat([home.normal(), away.normal()], dim=1)  # (K, 4)
        normal[:, 2:] = torch.where((away.count > 0)[:, None], normal[:, 2:], normal[:, :2])
        normal[home.count == 0] = torch.tensor(UNKNOWN, dtype=normal.dtype)
        return normal[list(moving)].to(self.voice.dtype)

    def column_parameters(self) -> tuple[nn.Parameter, ...]:
        """Return all parameters with a row for each column: all but the whitener."""
        return tuple(p for p in self.parameters() if p is not self.whitener)


class _Moments:
    """Running mean and variance of each column's confidence, in float64."""

    def __init__(self, columns: int) -> None:
        self.count, self.sum, self.square = torch.zeros(3, columns, dtype=torch.float64)

    def add(self, confidences: Tensor, mask: Tensor) -> None:
        """Add the confidences ``(N, K)`` where the mask is set."""
        at = torch.where(mask, confidences, 0.0).double()
        self.count += mask.sum(0)
        self.sum += at.sum(0)
        self.square += at.square().sum(0)

    def normal(self) -> Tensor:
        """Return mean and variance ``(K, 2)``, the variance no smaller than `FLOOR`²."""
        n = self.count.clamp_min(1)
        mean = self.sum / n
        variance = (self.square / n - mean.square()).clamp_min(0) + FLOOR**2
        return torch.stack([mean, variance], dim=1)


def _mean(statistics: Statistics) -> Tensor:
    return statistics.sums.sum(0) / statistics.counts.sum()


def _within(parts: Sequence[Statistics]) -> Tensor:
    """Return the covariance within columns, shrunk, ``(D, D)``, float64."""
    scatter, rows = torch.zeros_like(parts[0].scatter), 0.0
    for s in parts:
        n = float(s.counts.sum())
        mean = _mean(s)
        scatter = scatter + s.scatter - n * torch.outer(mean, mean)
        rows += n
    freedom = max(rows - len(parts), 1.0)
    return shrunk(scatter / freedom, freedom=freedom)
