"""Moments by domain, and drift: the distance of incoming texts from those of an expert's card.

For the N_k rows of a card let μ_k be the mean of the router's input and v_k = E‖z − μ_k‖². For the
n_k texts with k as the highest-weighted expert let these be m_k and w_k. If the texts are like the
card's, E‖m_k − μ_k‖² = w_k / n_k + v_k / N_k. So

    d_k² = ( ‖m_k − μ_k‖² − w_k / n_k − v_k / N_k ) / v_k

is an unbiased estimate of the squared distance of the two population means, in units of the card
rows' variance. d_k is 0 for texts like the card's, and 1 if their mean is as far off as a single
text of the card is. It is computed from sums alone: replicas and days add up, and no text is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import safetensors.torch
import torch
from torch import Tensor

from ..routers.base import ColumnData

MOMENTS = "moments.safetensors"
"""The file name of the moments of a generation's cards."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Moments:
    """Sums of the router's input over rows, by domain; W is its width.

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
        """Return the moments of the cards, from the experts' columns."""
        cards = [d.statistics for d in columns]
        return cls(
            rows=torch.stack([s.counts.sum() for s in cards]),
            sums=torch.stack([s.sums.sum(0) for s in cards]),
            squares=torch.stack([s.scatter.trace() for s in cards]),
        )

    def __add__(self, other: Moments) -> Moments:
        """Return the moments of both together."""
        return Moments(
            rows=self.rows + other.rows,
            sums=self.sums + other.sums,
            squares=self.squares + other.squares,
        )

    @classmethod
    def load(cls, data: bytes) -> Self:
        """Parse the bytes that `save` wrote."""
        return cls(**safetensors.torch.load(data))

    def save(self) -> bytes:
        """Return the bytes of the file, in float32."""
        return safetensors.torch.save({n: t.float().contiguous() for n, t in vars(self).items()})
