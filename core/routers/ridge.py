"""The ridge router: one regression onto everybody's labels, solved from the cards' sums.

    logit_k(z) = log Σ over y of k of exp(β (w_yᵀ z + b_y − (1 − κ) n_y / N))

The weights are those of one head trained on all rows (`routers.least_squares`), but it only says
whose text it is: what an expert answers stays its own. A forward pass is one product of (Y, D),
where the quadratic router has one of (D, D) for each column. λ, β and κ are chosen by the
likelihood of the cards' rows, each as if it were not among the sums.

A regression knows no density. What is declined is judged by the discriminants of the statistics
router over the first numbers of z alone, which on wide features are the pooled states: a covariance
of all of them would take longer to read than the text.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import ClassVar

import torch
from torch import Tensor, nn

from ...registry.errors import UsageError
from ..bus.bus import BACKBONE
from ..bus.experts import linear
from ..bus.signals import RouterSignals
from .base import ColumnData, LabelledRouter, Router
from .domain_statistics import Statistics
from .least_squares import BETA, EACH, PENALTIES, SHARE, LeastSquares, sharpest
from .statistics import StatisticsRouter
from .topk import keep_top

DENSE = 768
"""How many numbers of z a density is of, at most."""

MOST_ROWS = 2048
"""Most rows, of all cards, that λ, β and κ are chosen by: each costs a product with a
(D, D) matrix for every λ."""

SLACK = 0.5
"""Standard errors by which rows may be less likely under a larger λ that is taken: a card's few
rows flatter small ones. Best of 0, ½ and 1 on validation rows of three corpora."""


class RidgeRouter(LabelledRouter):
    """A row of weights for each (column, label); ``scale`` holds λ, β and κ, ``(3,)``.

    ``density`` tells how likely z's first numbers are. With k the k largest logits alone are kept;
    0 keeps all.
    """

    kind = "ridge"
    closed_form = True
    per_label = ("weight", "bias")
    shared = ("scale",)

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
        # A product for each column, whose bits nobody else's labels change; those of as many
        # labels that stand behind each other come as one batch of products.
        scores = []
        for first, columns, labels in self._runs:
            rows = slice(first, first + columns * labels)
            weight = self.weight[rows].view(columns, labels, self.weight.shape[1])
            bias = self.bias[rows].view(columns, labels)
            scores.append(linear(z, weight, bias).logsumexp(-1))  # (columns, B)
        logits = torch.cat(scores).T
        if self.chosen is None:
            return logits
        return keep_top(logits, self.chosen, by=self.expecting(logits))

    def _set_owner(self, owner: Tensor) -> None:
        """Set each row's column; remember where columns of as many rows follow each other.

        As (first row, columns, rows of each). Those of one row stay apart: of a batch of products
        with one number each, the bits follow how many there are.
        """
        super()._set_owner(owner)
        counts = [past - first for first, past in self._spans]
        self._runs = list[tuple[int, int, int]]()
        for (labels, _), same in groupby(enumerate(counts), lambda c: (c[1], c[0] * (c[1] == 1))):
            columns = [k for k, _ in same]
            self._runs.append((self._spans[columns[0]][0], len(columns), labels))

    def log_density(self, z: Tensor) -> Tensor:
        """Return log Σ_k p_k of z's first W numbers over the experts ``(B,)``, times √(D / W).

        So it spreads as much as one of all D numbers would.
        """
        width = self.density.width
        return self.density.log_density(z[:, :width]) * math.sqrt(self.width / width)

    def log_densities(self, z: Tensor) -> Tensor:
        """Return log p_k of z's first W numbers ``(B, K)``, times √(D / W)."""
        width = self.density.width
        return self.density.log_densities(z[:, :width]) * math.sqrt(self.width / width)

    def solve(self, columns: Sequence[ColumnData], *, only: Collection[str] | None = None) -> None:
        """Solve the regression: one joins or leaves by its sums, and every weight follows."""
        columns = _evened(columns)
        found = choose_regression(columns)
        self.scale = torch.tensor([found.penalty, found.beta, found.kappa])
        counts = [len(d.statistics.labels) for d in columns]
        weight, bias = found.solved.logits(beta=found.beta, kappa=found.kappa)
        weights, biases = torch.split(weight.float(), counts), torch.split(bias.float(), counts)
        index = self.columns.index
        rows = zip(weights, biases, strict=True)
        self.replace_rows({index(d.column): row for d, row in zip(columns, rows, strict=True)})
        first = [d.statistics.first(self.density.width) for d in columns]
        known = zip(columns, first, strict=True)
        self.density.solve([dataclasses.replace(d, statistics=s) for d, s in known])

    def learnt_shares(self, columns: Sequence[ColumnData]) -> Tensor:
        """Return the columns' shares of the rows: the regression has each row once."""
        rows = torch.tensor([float(_rows(d)) for d in _evened(columns)], dtype=torch.float64)
        return rows / rows.sum()

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Set the weights from a file, those of the density by their own names."""
        super().load_tensors(tensors)
        prefix = "density."
        own = {k.removeprefix(prefix): t for k, t in tensors.items() if k.startswith(prefix)}
        self.density.load_tensors(own)

    def copy_columns(self, parent: Router, *, keep: Collection[str]) -> None:
        """Raise: weights that never saw a newcomer's rows would claim them.

        Raises:
            UsageError: Always.
        """
        raise UsageError(
            "a ridge router is one regression onto all labels: no column moves alone",
            expected="level full, which is one solve from the cards' sums",
            found="row",
            hint="Use --level full; or --router statistics, which has level 'row'.",
        )


def _evened(columns: Sequence[ColumnData]) -> list[ColumnData]:
    """Return the columns with no more rows of nobody's than the largest expert has.

    Among experts of a few rows each, texts of nobody's would be what every row most likely is.
    """
    most = max((_rows(d) for d in columns if d.column != BACKBONE), default=0)
    return [_first(d, most) if d.column == BACKBONE and _rows(d) > most else d for d in columns]


def _rows(data: ColumnData) -> int:
    return int(data.statistics.counts.sum())


def _first(data: ColumnData, rows: int) -> ColumnData:
    """Return a column of its first rows alone."""
    z, labels = data.z[:rows], data.labels[:rows]
    some = Statistics.of_rows(z, labels)
    return dataclasses.replace(data, z=z, labels=labels, statistics=some)


@dataclass(frozen=True, kw_only=True, eq=False)
class Regression:
    """A regression onto the labels of all columns, and what makes its scores logits."""

    solved: LeastSquares
    penalty: float
    beta: float = BETA
    kappa: float = 1.0


def choose_regression(columns: Sequence[ColumnData], *, by_label: bool = False) -> Regression:
    """Return the regression under which the cards' rows are likeliest, or one like it.

    Args:
        columns: What each is known by.
        by_label: Whether rows have to be given their label, by the very likeliest; by default
            their column, by one of the largest λ that is `SLACK` from it.
    """
    parts = [d.statistics for d in columns]
    known = Statistics.union(parts)
    shown = [(k, d) for k, d in enumerate(columns) if d.labels]
    if len(shown) < 2:  # noqa: PLR2004  (rows of one column tell nothing apart)
        penalty = SHARE * float(known.counts.sum())
        return Regression(solved=LeastSquares.solve(known, penalty=penalty), penalty=penalty)
    groups = torch.cat([torch.full((len(p.labels),), k) for k, p in enumerate(parts)])
    first = [int((groups < k).sum()) for k in range(len(parts))]
    z = torch.cat([d.z for _, d in shown])
    label = torch.tensor(
        [first[k] + d.statistics.labels.index(y) for k, d in shown for y in d.labels]
    )
    some = slice(None, None, -(-len(z) // MOST_ROWS))
    z, label = z[some], label[some]
    owner = torch.arange(len(groups)) if by_label else groups
    best = []
    for penalty in PENALTIES:
        solved = LeastSquares.solve(known, penalty=penalty)
        found = sharpest(solved.left_out(z, label), owner, owner[label], share=solved.share)
        best.append((found, penalty, solved))
    least = min(found for found, _, _ in best)
    slack = 0.0 if by_label or len(label) < EACH else SLACK
    enough = least.loss + slack * least.error
    found, penalty, solved = [tried for tried in best if tried[0].loss <= enough][-1]
    return Regression(solved=solved, penalty=penalty, beta=found.beta, kappa=found.kappa)
