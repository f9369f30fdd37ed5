"""The sparse router: only the k columns with the largest weights are used (Shazeer et al. 2017).

    logits = W_r z + b
    α      = softmax over the k largest logits, exactly zero elsewhere

Training is on the logits before the cut: cross-entropy of all logits to the row's column, with
optional noise, and the balance loss of the Switch Transformer (Fedus et al. 2021) on the columns
that the cut would choose. So every column gets a gradient, and none is approximated for the cut.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from ..bus.signals import RouterSignals
from .linear import LinearRouter


def top_mask(logits: Tensor, k: int) -> Tensor:
    """Return a mask of the k largest of ``(B, K)``; ties go to the first column."""
    least = logits.topk(k).values[:, -1:]
    above, equal = logits > least, logits == least
    left = k - above.sum(1, keepdim=True)
    return above | (equal & (equal.cumsum(1) <= left))


def keep_top(logits: Tensor, k: int, *, by: Tensor | None = None) -> Tensor:
    """Return logits ``(B, K)``, all but the k largest set to −∞: the largest of `by`, if given."""
    return logits.masked_fill(~top_mask(logits if by is None else by, k), -torch.inf)


class TopKRouter(LinearRouter):
    """A linear router that keeps its k largest logits.

    Args:
        width: D.
        columns: The columns.
        seed: The seed of the noise.
        k: How many columns get a weight; all if there are fewer.
        balance: Weight of the balance loss K · Σ f_i P_i, which is 1 at uniform use.
        noise: Standard deviation of the noise on the logits in training.
    """

    kind = "topk"
    options: ClassVar[Mapping[str, type[int] | type[float]]] = {
        "k": int,
        "balance": float,
        "noise": float,
    }

    def __init__(
        self,
        *,
        width: int,
        columns: tuple[str, ...],
        seed: int = 0,
        k: int = 2,
        balance: float = 0.01,
        noise: float = 0.1,
    ) -> None:
        super().__init__(width=width, columns=columns, seed=seed)
        self.k, self.balance, self.noise = max(1, min(k, len(columns))), balance, noise
        self.chosen = self.k

    def forward(self, z: Tensor, signals: RouterSignals | None = None) -> Tensor:
        """Return logits ``(B, K)``, K − k of them −∞, for z ``(B, D)``."""
        logits = super().forward(z)
        return keep_top(logits, self.k, by=self.expecting(logits))

    def training_logits(
        self, z: Tensor, signals: RouterSignals | None, *, generator: torch.Generator
    ) -> Tensor:
        """Return all logits ``(B, K)``, with noise."""
        logits = super().forward(z)
        if not self.noise:
            return logits
        return logits + self.noise * torch.randn(logits.shape, generator=generator).to(logits)

    def penalty(self, logits: Tensor, weight: Tensor) -> Tensor:
        """Return balance · K · Σ f_i P_i, ``()``: f shares of the cut, P mean probabilities."""
        if not self.balance:
            return super().penalty(logits, weight)
        used = (weight[:, None] * top_mask(logits.detach(), self.k)).sum(0) / self.k
        probability = (weight[:, None] * torch.softmax(logits, dim=1)).sum(0)
        return self.balance * len(self.columns) * (used * probability).sum() / weight.sum() ** 2


class HardRouter(TopKRouter):
    """Only the column with the largest logit, at unit scale: α is one-hot."""

    kind = "hard"
    options: ClassVar[Mapping[str, type[int] | type[float]]] = {}

    def __init__(self, *, width: int, columns: tuple[str, ...], seed: int = 0) -> None:
        super().__init__(width=width, columns=columns, seed=seed, k=1, balance=0.0, noise=0.0)
