"""The evidence router: the quadratic router, corrected by the experts' own voices.

    logit_k(z) = log p(k | z) / T + log N(e_k; home_k) − log N(e_k; away_k)

The first term is the quadratic router's posterior. The second is a naive Bayes ratio: e_k(z) is
how much expert k wants to have a say (`core.evidence`), Gaussian with one mean and variance on
the expert's own rows and another on everybody else's. Closed form, no gradient step.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor, nn

from .base import ColumnData, Router
from .quadratic import QuadraticRouter

__all__ = ["FLOOR", "EvidenceRouter", "log_normal"]

TEMPERATURE = 2.0
"""T: discriminants estimated from few rows in many dimensions are too sure of themselves; chosen
on the gate rows of the tiny ranges, where 2 and 4 close the gap to the oracle and 1 leaves a
third of a point, and on validation rows of 20 Newsgroups, where 2 is best."""

FLOOR = 0.1
"""Smallest standard deviation of a voice: an expert that is silent to the last digit on the rows
at hand need not be so on the next one."""


class EvidenceRouter(QuadraticRouter):
    """A `QuadraticRouter` that also listens.

    ``voice`` holds, for each column, mean and variance of its evidence at home and away,
    ``(K, 4)``; a column without evidence (the backbone's) has the same twice.
    """

    kind = "evidence"
    reads_evidence = True

    def __init__(self, *, width: int, columns: tuple[str, ...], seed: int = 0) -> None:
        super().__init__(width=width, columns=columns, seed=seed)
        self.voice = nn.Parameter(torch.tensor([[0.0, 1.0, 0.0, 1.0]]).repeat(len(columns), 1))

    def forward(self, z: Tensor, evidence: Tensor | None = None) -> Tensor:
        """Return logits ``(B, K)`` for z ``(B, D)`` and e(z) ``(B, K)``."""
        posterior = super().forward(z) / TEMPERATURE  # up to a constant, which softmax ignores
        if evidence is None:
            return posterior
        home_mean, home_var, away_mean, away_var = self.voice.unbind(dim=1)
        home = log_normal(evidence, home_mean, home_var)
        return posterior + home - log_normal(evidence, away_mean, away_var)

    def solve(self, columns: Sequence[ColumnData], *, only: Collection[str] | None = None) -> None:
        """Set discriminants and voices from the columns' rows."""
        super().solve(columns, only=only)
        with torch.no_grad():
            for k, data in enumerate(columns):
                if (only is None or data.column in only) and data.evidence is not None:
                    self.voice[k] = _voice(columns, k)

    def column_parameters(self) -> tuple[nn.Parameter, ...]:
        """Return what has a row for each column: the whiteners and the voices."""
        return (*super().column_parameters(), self.voice)

    def adopt(self, parent: Router, *, keep: Collection[str]) -> None:
        """Take over covariance, discriminants and voices of the columns in `keep`."""
        super().adopt(parent, keep=keep)
        if not isinstance(parent, EvidenceRouter):
            raise TypeError(f"expected an evidence router, found {parent.kind}")
        with torch.no_grad():
            for name in keep:
                self.voice[self.columns.index(name)] = parent.voice[parent.columns.index(name)]

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Set the weights from a file."""
        super().load_tensors(tensors)
        self.voice.data = tensors["voice"].clone()


def _voice(columns: Sequence[ColumnData], k: int) -> Tensor:
    """Return mean and variance of e_k on column k's rows, and on the others', ``(4,)``.

    Away from home every column weighs the same, whatever the number of its rows.
    """
    at_home: list[Tensor] = []
    away: list[Tensor] = []
    for i, data in enumerate(columns):
        if data.evidence is not None:
            (at_home if i == k else away).append(data.evidence[:, k].double())
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
