"""Moments by domain, and drift: how far the texts that come in lie from those of an expert's card.

Of N_k rows of a card let μ_k be the mean of what the router reads and v_k = E‖z − μ_k‖²; of n_k
texts whose heaviest expert is k let these be m_k and w_k. Texts like the card's have
E‖m_k − μ_k‖² = w_k / n_k + v_k / N_k, so

    d_k² = ( ‖m_k − μ_k‖² − w_k / n_k − v_k / N_k ) / v_k

estimates without bias how far the means of all such texts lie apart, in standard deviations of the
card's rows: 0 for texts like these, 1 where their mean is as far off as a text of the card is. All
of it follows from sums, so replicas and days add up, and no text is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import safetensors.torch
import torch
from torch import Tensor

from ..bus.bus import Bus
from ..routers.base import ColumnData

MOMENTS = "moments.safetensors"
"""The file of a generation that holds the moments of its experts' cards."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Moments:
    """Sums over rows, by domain, of what the router reads: W numbers a row.

    Attributes:
        rows: n_k, ``(E,)``.
        sums: Σ z, ``(E, W)``.
        squares: Σ ‖z‖², ``(E,)``.
    """

    rows: Tensor
    sums: Tensor
    squares: Tensor

    @classmethod
    def of_columns(cls, columns: Sequence[ColumnData]) -> Self:
        """Return the moments of what cards show, given the experts' columns."""
        known = [d.statistics for d in columns]
        return cls(
            rows=torch.stack([s.counts.sum() for s in known]),
            sums=torch.stack([s.sums.sum(0) for s in known]),
            squares=torch.stack([s.scatter.trace() for s in known]),
        )

    @classmethod
    def of_texts(cls, bus: Bus, h: Tensor, alpha: Tensor) -> Self:
        """Return the moments of texts that a bus has weighed, each counted for its heaviest expert.

        Args:
            bus: The bus.
            h: Features ``(N, D)``.
            alpha: Its weights ``(N, K)``; where the backbone's is the largest, a text is nobody's.
        """
        experts, heaviest = len(bus.ids), alpha.argmax(-1)
        own = heaviest < experts
        z, group = bus.layout.router_input(bus.norm(h[own])).double(), heaviest[own]
        return cls(
            rows=group.bincount(minlength=experts).double(),
            sums=z.new_zeros(experts, z.shape[-1]).index_add(0, group, z),
            squares=z.new_zeros(experts).index_add(0, group, z.square().sum(-1)),
        )

    def __add__(self, other: Moments) -> Moments:
        """Return the moments of both."""
        return Moments(
            rows=self.rows + other.rows,
            sums=self.sums + other.sums,
            squares=self.squares + other.squares,
        )

    def faded(self, most: float) -> Moments:
        """Return moments of at most so many rows a domain, older ones counting less."""
        keep = (most / self.rows).clamp_max(1)
        return Moments(
            rows=self.rows * keep, sums=self.sums * keep[:, None], squares=self.squares * keep
        )

    def drift_from(self, card: Moments) -> Tensor:
        """Return d ``(E,)``, 0 where its square is estimated below; NaN of less than two rows."""
        (m, w), (mu, v) = self._mean_and_spread(), card._mean_and_spread()
        off = (m - mu).square().sum(-1) - w / self.rows - v / card.rows
        known = (self.rows > 1) & (card.rows > 1) & (v > 0)
        return torch.where(known, (off / v).clamp_min(0).sqrt(), torch.nan)

    def _mean_and_spread(self) -> tuple[Tensor, Tensor]:
        """Return the mean ``(E, W)`` and E‖z − mean‖² ``(E,)``, with n − 1 for n."""
        rows, sums = self.rows.double(), self.sums.double()
        mean = sums / rows[:, None]
        within = self.squares.double() - rows * mean.square().sum(-1)
        return mean, within.clamp_min(0) / (rows - 1)

    @classmethod
    def load(cls, data: bytes) -> Self:
        """Read what `save` wrote."""
        return cls(**safetensors.torch.load(data))

    def save(self) -> bytes:
        """Return it as a file's bytes, in float32."""
        return safetensors.torch.save({n: t.float().contiguous() for n, t in vars(self).items()})
