"""The ridge router: one regression onto the labels of all experts, solved from the cards' sums.

    logit_k(z) = log Σ over y of k of exp(β (w_yᵀ z + b_y − (1 − κ) n_y / N))

The weights are those of one head trained on all rows (`routers.least_squares`), but they are used
only for routing; the answers are the experts'. A forward pass takes one product of (Y, D), where
the quadratic router takes one of (D, D) for each column. λ, β and κ are chosen by the likelihood of
the cards' rows, each evaluated as if left out of the sums.

A regression has no density. Declining therefore uses the discriminants of the statistics router
over the first dimensions of z, which on wide features are the pooled states. A covariance of all
dimensions would take longer to read than the text.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ...registry.errors import UsageError
from ..bus.bus import BACKBONE
from ..bus.signals import RouterSignals
from .base import ColumnData, LabelledRouter, Router
from .domain_statistics import Statistics
from .label_products import column_scores
from .least_squares import BETA, EACH, PENALTIES, SHARE, LeastSquares, sharpest
from .statistics import StatisticsRouter
from .topk import keep_top

DENSE = 768
"""The most dimensions of z that the density uses."""

MOST_ROWS = 2048
"""The most rows, of all cards, used to choose λ, β and κ: each costs a product with a
(D, D) matrix for every λ."""

SLACK = 0.5
"""Accepted loss of likelihood for a larger λ, in standard errors: on the few rows of a card small λ
look too good. Best of 0, ½ and 1 on validation rows of three corpora."""


class RidgeRouter(LabelledRouter):
    """One row of weights for each (column, label); ``scale`` holds λ, β and κ, ``(3,)``.

    ``density`` estimates the density of z's first dimensions. With k, only the k largest logits are
    kept; 0 keeps all.
    """

    kind = "ridge"
    closed_form = True
    per_label = ("weight", "bias")
    shared: ClassVar[tuple[str, ...]] = ("scale",)

    options: ClassVar[Mapping[str, type[int] | type[float]]] = {"k": int}

    def __init__(self, *, width: int, columns: tuple[str, ...], seed: int = 0, k: int = 0) -> None:
        super().__init__(width=width, columns=columns, seed=seed)
        self.chosen = min(k, len(columns)) if k > 0 else None
        self.weight = nn.Parameter(torch.zeros(0, width))
        self.bias = nn.Parameter(torch.zeros(0))
        self.register_buffer("scale", torch.tensor([0.0, BETA, 1.0]))
        self.density = StatisticsRouter(width=min(width, DENSE), columns=columns)

    scale: Tensor

    def forward(self, z: Tensor, signals: RouterSignals | None = None) -> Tensor:
        """Return logits ``(B, K)`` for z ``(B, D)``."""
        logits = column_scores(z, self.weight, self.bias, self._runs, added=self.added(signals))
        if self.chosen is None:
            return logits
        return keep_top(logits, self.chosen, by=self.expecting(logits))

    def added(self, signals: RouterSignals | None) -> Tensor | None:
        """Return what each label's score gets besides ``(B, Y)``; a kind that reads more has it."""
        return None

    def log_density(self, z: Tensor) -> Tensor:
        """Return log Σ_k p_k of z's first W dimensions over the experts ``(B,)``, times √(D / W).

        The factor gives it the spread that a density over all D dimensions would have.
        """
        width = self.density.width
        return self.density.log_density(z[:, :width]) * math.sqrt(self.width / width)

    def log_densities(self, z: Tensor) -> Tensor:
        """Return log p_k of z's first W dimensions ``(B, K)``, times √(D / W)."""
        width = self.density.width
        return self.density.log_densities(z[:, :width]) * math.sqrt(self.width / width)

    def solve(self, columns: Sequence[ColumnData], *, only: Collection[str] | None = None) -> None:
        """Solve the regression; adding or removing an expert's sums changes every weight."""
        columns = self.evened(columns)
        regression = choose_regression(columns)
        self.scale = torch.tensor([regression.penalty, regression.beta, regression.kappa])
        counts = [len(d.statistics.labels) for d in columns]
        weight, bias = regression.solved.logits(beta=regression.beta, kappa=regression.kappa)
        weights, biases = torch.split(weight.float(), counts), torch.split(bias.float(), counts)
        self.replace_rows({d.column: (weights[k], biases[k]) for k, d in enumerate(columns)})
        width = self.density.width
        self.density.solve(
            [dataclasses.replace(d, statistics=d.statistics.first(width)) for d in columns]
        )

    def evened(self, columns: Sequence[ColumnData]) -> list[ColumnData]:
        """Return the columns, the backbone's cut to `most_background` rows.

        Among experts with a few rows each, the background would otherwise be the most probable
        column for every row.
        """
        most = self.most_background([d for d in columns if d.column != BACKBONE])
        return [_first(d, most) if d.column == BACKBONE and _rows(d) > most else d for d in columns]

    def most_background(self, experts: Sequence[ColumnData]) -> int:
        """Return the number of rows of the largest expert, 0 without experts."""
        return max(map(_rows, experts), default=0)

    def learnt_shares(self, columns: Sequence[ColumnData]) -> Tensor:
        """Return the columns' shares of the rows, as the regression counts each row once."""
        rows = torch.tensor([_rows(d) for d in self.evened(columns)], dtype=torch.float64)
        return rows / rows.sum()

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Set the weights from a file; those of the density have a name prefix."""
        super().load_tensors(tensors)
        prefix = "density."
        density = {k.removeprefix(prefix): t for k, t in tensors.items() if k.startswith(prefix)}
        self.density.load_tensors(density)

    def copy_columns(self, parent: Router, *, keep: Collection[str]) -> None:
        """Raise: old weights would assign a new column's rows to other columns.

        Raises:
            UsageError: Always.
        """
        raise UsageError(
            "a ridge router is one regression onto all labels: no column moves alone",
            expected="level full, which is one solve from the cards' sums",
            found="row",
            hint="Use --level full; or --router statistics, which has level 'row'.",
        )


def _rows(data: ColumnData) -> int:
    return int(data.statistics.counts.sum())


def _first(data: ColumnData, rows: int) -> ColumnData:
    """Return a column of its first rows alone."""
    first = Statistics.of_rows(data.z[:rows], data.labels[:rows])
    return dataclasses.replace(data, z=data.z[:rows], labels=data.labels[:rows], statistics=first)


@dataclass(frozen=True, kw_only=True, eq=False)
class Regression:
    """A regression onto the labels of all columns, and the numbers that scale scores to logits."""

    solved: LeastSquares
    penalty: float
    beta: float = BETA
    kappa: float = 1.0


def choose_regression(columns: Sequence[ColumnData], *, by_label: bool = False) -> Regression:
    """Return the regression that maximises the likelihood of the cards' rows, or nearly so.

    Args:
        columns: The training data of each column.
        by_label: Whether the likelihood is that of the rows' labels; then the maximum is taken. By
            default it is that of their columns, and the largest λ within `SLACK` of the best is
            taken.
    """
    parts = [d.statistics for d in columns]
    statistics = Statistics.union(parts)
    shown = [(k, d) for k, d in enumerate(columns) if d.labels]
    if len(shown) < 2:  # noqa: PLR2004  (rows of one column cannot discriminate)
        penalty = SHARE * float(statistics.counts.sum())
        return Regression(solved=LeastSquares.solve(statistics, penalty=penalty), penalty=penalty)
    groups = torch.cat([torch.full((len(p.labels),), k) for k, p in enumerate(parts)])
    first = [int((groups < k).sum()) for k in range(len(parts))]
    z = torch.cat([d.z for _, d in shown])
    label = torch.tensor(
        [first[k] + d.statistics.labels.index(y) for k, d in shown for y in d.labels]
    )
    sample = slice(None, None, -(-len(z) // MOST_ROWS))
    z, label = z[sample], label[sample]
    owner = torch.arange(len(groups)) if by_label else groups
    best = []
    for penalty in PENALTIES:
        solved = LeastSquares.solve(statistics, penalty=penalty)
        sharpness = sharpest(solved.left_out(z, label), owner, owner[label], share=solved.share)
        best.append((sharpness, penalty, solved))
    least = min(sharpness for sharpness, _, _ in best)
    slack = 0.0 if by_label or len(label) < EACH else SLACK
    enough = least.loss + slack * least.error
    sharpness, penalty, solved = [tried for tried in best if tried[0].loss <= enough][-1]
    return Regression(solved=solved, penalty=penalty, beta=sharpness.beta, kappa=sharpness.kappa)
