"""The evidence router: the quadratic router, corrected by the experts' own confidences.

    logit_k(z) = log p(k | z) / T + log N(e_k; home_k) − log N(e_k; away_k)

The first term is the quadratic router's posterior. The second is a naive Bayes ratio: e_k(z) is
expert k's confidence (`core.bus.evidence`), modelled as a Gaussian with one mean and variance on
the expert's own rows (home) and another on all other rows (away). Closed form, no gradient step.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor, nn

from ..bus.signals import RouterSignals
from .base import ColumnData
from .quadratic import QuadraticRouter

TEMPERATURE = 2.0
"""T: discriminants estimated from few rows in many dimensions are overconfident. Chosen on the gate
rows of the tiny ranges, where 2 and 4 close the gap to the oracle and 1 leaves a third of a point,
and on validation rows of 20 Newsgroups, where 2 is best."""

FLOOR = 0.1
"""Smallest standard deviation of a confidence: an expert whose output is exactly zero on these rows
may differ on the next one."""


class EvidenceRouter(QuadraticRouter):
    """A `QuadraticRouter` that also reads confidences.

    ``voice`` holds mean and variance of each column's confidence at home and away, ``(K, 4)``. For
    a column without confidences (the backbone's) both are the same.
    """

    kind = "evidence"
    reads = frozenset({"confidences"})
    per_column = ("whitener", "voice")

    def __init__(self, *, width: int, columns: tuple[str, ...], seed: int = 0) -> None:
        super().__init__(width=width, columns=columns, seed=seed)
        self.voice = nn.Parameter(torch.tensor([[0.0, 1.0, 0.0, 1.0]]).repeat(len(columns), 1))

    def forward(self, z: Tensor, signals: RouterSignals | None = None) -> Tensor:
        """Return logits ``(B, K)`` for z ``(B, D)`` and e(z) ``(B, K)``."""
        posterior = super().forward(z) / TEMPERATURE  # up to a constant, which softmax ignores
        if signals is None:
            return posterior
        home_mean, home_var, away_mean, away_var = self.voice.unbind(dim=1)
        e = signals["confidences"]  # (B, K)
        home = log_normal(e, home_mean, home_var)
        return posterior + home - log_normal(e, away_mean, away_var)

    def solve(self, columns: Sequence[ColumnData], *, only: Collection[str] | None = None) -> None:
        """Set discriminants and moments of confidences from the columns' rows."""
        super().solve(columns, only=only)
        with torch.no_grad():
            for k, data in enumerate(columns):
                if (only is None or data.column in only) and data.signals is not None:
                    self.voice[k] = _home_and_away(columns, k)


def _home_and_away(columns: Sequence[ColumnData], k: int) -> Tensor:
    """Return mean and variance of e_k on column k's rows, and on all other rows, ``(4,)``.

    In the second, every other column has the same weight, whatever the number of its rows.
    """
    at_home: list[Tensor] = []
    away: list[Tensor] = []
    for i, data in enumerate(columns):
        if data.signals is not None:
            (at_home if i == k else away).append(data.signals["confidences"][:, k].double())
    home_mean, home_var = _moments(at_home)
    away_mean, away_var = _moments(away) if away else (home_mean, home_var)
    return torch.stack([home_mean, home_var, away_mean, away_var])


def _moments(parts: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    mean = torch.stack([p.mean() for p in parts]).mean()
    variance = torch.stack([(p - mean).square().mean() for p in parts]).mean()
    return mean, variance + FLOOR**2


def log_normal(x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """Return log N(x; mean, variance) up to a constant, ``(B, K)`` for moments ``(K,)``."""
    return -0.5 * ((x - mean).square() / variance + variance.log())
