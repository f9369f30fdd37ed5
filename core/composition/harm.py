"""What newcomers take from the others, beside what nobody could spare them.

More labels are more to confuse: whatever answers, rows of the others are lost when some join. So a
domain's fall is set beside that of a reference of no expert's making, linear discriminants over all
labels from the sums of the same cards, before and after, on the same gate rows:

    excess = fall − fall of the reference, with the standard error of the mean of the paired
             differences over the domain's n gate rows

A card may lie to the reference as well, and raise what is excused. So more numbers of each domain
say whose the newcomers' rows are, and what goes to them:

    overlap = P(a newcomer's row lies where the densest fifth of the domain's gate rows lie) / ⅕,
              by the domain's discriminants: 1 for rows of the domain itself
    reverse = the same of the domain's rows among the newcomer's, by the newcomer's discriminants:
              above 1 its sums are not those of its rows
    taken   = share of gate rows that were answered rightly and surely (p ≥ .9), are answered
              wrongly now, and have a newcomer for their heaviest column
    mass    = the mean fall of the right label's probability: what a copy takes first
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..evaluation.judge import EvaluationResult
from ..model.composed import ComposedModel
from ..model.conformal import sets_possible
from ..receipt import ExcessHarm
from ..routers.base import ColumnData
from ..routers.statistics import StatisticsRouter
from ..types import Row

DENSEST = 0.2
"""The share of a domain's gate rows, the most typical ones, where newcomers are looked for."""

SURE = 0.9
"""A probability that counts as a sure answer."""


@dataclass(frozen=True, kw_only=True, eq=False)
class GateAnswers:
    """How a composition answered gate rows.

    Attributes:
        model: The composition.
        rows: The rows, N of them.
        result: What it made of them.
    """

    model: ComposedModel
    rows: Sequence[Row]
    result: EvaluationResult

    def of(self, domain: str) -> Tensor:
        """Return the places of a domain's rows, in the card's order."""
        return torch.tensor(
            [n for n, r in enumerate(self.rows) if r.domain == domain], dtype=torch.int64
        )


def excess_harm(
    before: GateAnswers, after: GateAnswers, data: Sequence[ColumnData], z: Tensor
) -> dict[str, ExcessHarm]:
    """Measure what each domain of both compositions loses to experts that only the new one has.

    Args:
        before: What the current composition answers.
        after: What the new one does.
        data: What the new one's cards hold, by column.
        z: What routers read of the new one's gate rows, ``(N, W)``.

    Returns:
        By domain; nothing where nobody joins, or answers are no labels of whole texts.
    """
    ids, old = after.model.bus.ids, set(before.model.bus.ids)
    stay, join = [i for i in ids if i in old], [i for i in ids if i not in old]
    by_id = {d.column: d for d in data}
    if not stay or not join or not sets_possible(after.model.bus):
        return {}
    first, then = (_Reference.of([by_id[i] for i in some]) for some in (stay, ids))
    lost = first.hits(z, after.rows) - then.hits(z, after.rows)  # (N,)
    newcomers = {i: by_id[i].z for i in join}
    rows = {i: torch.cat([shown, z[after.of(i)]]) for i, shown in newcomers.items()}
    found = {}
    for domain in stay:
        own, was = after.of(domain), before.of(domain)
        if len(own) and len(own) == len(was):
            fall = before.result.hits[was] - after.result.hits[own]
            difference = fall - lost[own]
            found[domain] = ExcessHarm(
                fall=float(fall.mean()),
                reference=float(lost[own].mean()),
                excess=float(difference.mean()),
                error=float(difference.std(correction=0)) / len(own) ** 0.5,
                overlap=max(first.overlap(domain, z[own], new) for new in rows.values()),
                reverse=max(then.overlap(i, new, z[own]) for i, new in newcomers.items()),
                taken=_taken(before, after, was, own, join),
                mass=_mass(before, was) - _mass(after, own),
            )
    return found


def _mass(answers: GateAnswers, rows: Tensor) -> float:
    """Return the mean probability of the right label of some rows."""
    known = answers.result.calibration
    if known is None or known.likelihood is None:
        return 0.0
    return float(known.likelihood[rows].double().mean())


def _taken(
    before: GateAnswers, after: GateAnswers, was: Tensor, own: Tensor, join: Sequence[str]
) -> float:
    """Return the share of a domain's rows that a newcomer answers wrongly and were surely right."""
    columns = torch.tensor([after.model.bus.columns.index(i) for i in join])
    sure = (before.result.hits[was] > 0) & (before.result.confidence[was] >= SURE)
    moved = torch.isin(after.result.heaviest[own], columns) & (after.result.hits[own] == 0)
    return float((sure & moved).double().mean())


@dataclass(frozen=True, kw_only=True, eq=False)
class _Reference:
    """Linear discriminants over the labels of some columns, those of their `StatisticsRouter`.

    Every column weighs the same, so that no card gains by its number of rows.
    """

    router: StatisticsRouter
    labels: tuple[str, ...]

    @classmethod
    def of(cls, data: Sequence[ColumnData]) -> _Reference:
        router = StatisticsRouter(
            width=data[0].statistics.sums.shape[1], columns=tuple(d.column for d in data)
        )
        router.solve(data)
        return cls(router=router, labels=tuple(y for d in data for y in d.statistics.labels))

    def hits(self, z: Tensor, rows: Sequence[Row]) -> Tensor:
        """Return whether each row is answered rightly, float64 ``(N,)``."""
        with torch.inference_mode():
            best = torch.nn.functional.linear(z, self.router.weight, self.router.bias).argmax(-1)
        right = [self.labels[k] == r.label for k, r in zip(best.tolist(), rows, strict=True)]
        return torch.tensor(right, dtype=torch.float64)

    def overlap(self, domain: str, own: Tensor, others: Tensor) -> float:
        """Return how many of other rows lie where the densest of a domain's own do."""
        column = self.router.columns.index(domain)
        with torch.inference_mode():
            dense = torch.quantile(self._density(own, column), 1 - DENSEST)
            return float((self._density(others, column) > dense).double().mean()) / DENSEST

    def _density(self, z: Tensor, column: int) -> Tensor:
        """Return log p(z) under a column's Gaussians ``(N,)``, up to a constant."""
        logit: Tensor = self.router(z)[:, column]
        return (logit - 0.5 * ((z @ self.router.precision) * z).sum(-1)).double()
