"""The blend router: constant weights, the maximum-likelihood mixture of the columns.

    α = argmax over the simplex of Σ_n w_n log Σ_k α_k p_k(y_n|x_n)

p_k(y|x) is the answer of column k alone. The objective is concave, and expectation maximisation
increases it: α_k ← Σ_n w_n α_k p_k(n) / Σ_j α_j p_j(n). All columns have the same total weight w.
Rows whose answers are not in a card (vectors, statistics, the background) count for their column.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor, nn

from redhost.core.bus.signals import ANSWERS, RouterSignals
from redhost.core.routers.base import ColumnData, Router

STEPS = 2000
TOLERANCE = 1e-10
FLOOR = 1e-12
"""Smallest weight of a column, so that its logarithm is finite."""


class BlendRouter(Router):
    """One logit for each column, independent of the input."""

    kind = "blend"
    closed_form = True
    reads = frozenset({ANSWERS})

    def __init__(self, *, width: int, columns: tuple[str, ...], seed: int = 0) -> None:
        super().__init__(width=width, columns=columns, seed=seed)
        self.logit = nn.Parameter(torch.zeros(len(columns)))

    def forward(self, z: Tensor, signals: RouterSignals | None = None) -> Tensor:
        """Return logits ``(B, K)``, equal for all rows of z ``(B, D)``."""
        return self.logit.expand(z.shape[0], -1)

    def solve(self, columns: Sequence[ColumnData], *, only: Collection[str] | None = None) -> None:
        """Set the weights; level `row` gives new columns their share and changes no others."""
        own = torch.eye(len(columns))  # rows without likelihoods count for their own column
        p = torch.cat(
            [
                own[k].expand(len(d.z), -1) if d.likelihood is None else d.likelihood
                for k, d in enumerate(columns)
            ]
        )  # (N, K)
        weight = torch.cat([torch.full((len(d.z),), 1 / len(d.z)) for d in columns])
        best = likeliest_mixture(p, weight / weight.sum()).clamp_min(FLOOR).log()
        moving = [k for k, d in enumerate(columns) if only is None or d.column in only]
        fixed = [k for k in range(len(columns)) if k not in moving]
        with torch.no_grad():
            shift = best.new_zeros(())
            if fixed:  # scale: the fixed columns' total mass corresponds to theirs in the optimum
                shift = self.logit[fixed].double().logsumexp(0) - best[fixed].logsumexp(0)
            for k in moving:
                self.logit[k] = best[k] + shift

    def column_parameters(self) -> tuple[nn.Parameter, ...]:
        """Return the logits."""
        return (self.logit,)


def likeliest_mixture(p: Tensor, weight: Tensor) -> Tensor:
    """Return α ``(K,)`` that maximises Σ_n w_n log Σ_k α_k p_k(n), in float64.

    Args:
        p: Likelihoods ``(N, K)``, 0 or more.
        weight: w ``(N,)``, summing to 1.
    """
    p, weight = p.double().clamp_min(FLOOR), weight.double()
    alpha = p.new_full((p.shape[1],), 1 / p.shape[1])
    for _ in range(STEPS):
        share = alpha * p
        moved = (weight[:, None] * share / share.sum(-1, keepdim=True)).sum(0)
        done = bool((moved - alpha).abs().max() < TOLERANCE)
        alpha = moved
        if done:
            break
    return alpha
