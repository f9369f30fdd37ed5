"""Measure what newcomers cost the other domains, beyond the unavoidable loss.

More labels are easier to confuse: with any classifier, other domains lose rows when experts join.
So a domain's fall is compared with that of a reference that uses no expert: linear discriminants
over all labels, from the sums of the same cards, before and after, on the same gate rows:

    excess = fall − fall of the reference, with the standard error of the mean of the paired
             differences over the domain's n gate rows

A card may also mislead the reference, and so raise what is excused. More numbers per domain
therefore measure which domain the newcomers' rows belong to, and which rows they take:

    overlap = P(a newcomer's row lies where the densest fifth of the domain's gate rows lie) / ⅕,
              by the domain's discriminants: 1 for rows of the domain itself
    reverse = the same for the domain's rows, by the newcomer's discriminants: only reported,
              because a card's sums are checked against its rows when it is read
    taken   = share of gate rows that were right with high confidence (p ≥ .9), are wrong now,
              and have a newcomer as their heaviest column
    mass    = the mean fall of the right label's probability, the first effect of a copied card
    copied  = share of a newcomer's shown rows that equal, number by number, rows of a member's card
              under another label; with the same label the newcomer answers as the member does
    claimed = share of gate rows that would be right but for the row counts that newcomers claim:
              with α_k q_k / p_k in place of α, p the columns' shares of all rows, and q the same
              with no newcomer's share above the largest member's (`composition.prior`)

In the reference every column counts as many rows, independent of the row count a card claims.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..batching import batched_slices
from ..evaluation.judge import EvaluationResult
from ..model.composed import ComposedModel
from ..model.conformal import sets_possible
from ..receipt import ExcessHarm
from ..routers.base import ColumnData, Router
from ..routers.ridge import DENSE
from ..routers.statistics import StatisticsRouter
from ..types import Row

DENSEST = 0.2
"""The share of a domain's gate rows, the densest ones, that overlap is measured with."""

SURE = 0.9
"""The probability from which an answer counts as high-confidence."""

SAME = 1e-2
"""Largest distance between two vectors of one text, per number: a card may have been rounded."""


@dataclass(frozen=True, kw_only=True, eq=False)
class GateAnswers:
    """A composition's answers to gate rows.

    Attributes:
        model: The composition.
        rows: The rows, N of them.
        result: Its evaluation on them.
    """

    model: ComposedModel
    rows: Sequence[Row]
    result: EvaluationResult

    def of(self, domain: str) -> Tensor:
        """Return the indices of a domain's rows, in the card's order."""
        return torch.tensor(
            [n for n, r in enumerate(self.rows) if r.domain == domain], dtype=torch.int64
        )


def excess_harm(
    before: GateAnswers, after: GateAnswers, data: Sequence[ColumnData], h: Tensor
) -> dict[str, ExcessHarm]:
    """Measure what each domain of both compositions loses to experts that only the new one has.

    Args:
        before: The answers of the current composition.
        after: The answers of the new one.
        data: The data of the new one's cards, by column.
        h: Features of the new one's gate rows, ``(N, D)``.

    Returns:
        By domain; empty if no expert joins, or if answers are not labels of whole texts.
    """
    ids, old = after.model.bus.ids, set(before.model.bus.ids)
    stay, join = [i for i in ids if i in old], [i for i in ids if i not in old]
    by_id = {d.column: d for d in data}
    if not stay or not join or not sets_possible(after.model.bus):
        return {}
    bus = after.model.bus
    z = bus.layout.router_input(bus.norm(h))
    claimed = _claimed(after, h, data, join)
    first, then = (_Reference.of([by_id[i] for i in some]) for some in (stay, ids))
    lost = first.hits(z, after.rows) - then.hits(z, after.rows)  # (N,)
    rows = {i: torch.cat([by_id[i].z, z[after.of(i)]]) for i in ids}
    labels = {i: _labels(by_id[i], [after.rows[n] for n in after.of(i).tolist()]) for i in ids}
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
                overlap=max(first.overlap(domain, z[own], rows[i]) for i in join),
                reverse=max(then.overlap(i, by_id[i].z, z[own]) for i in join),
                taken=_taken(before, after, was, own, join),
                mass=_mass(before, was) - _mass(after, own),
                copied=max(_copied(rows[i], labels[i], rows[domain], labels[domain]) for i in join),
                claimed=float(claimed[own].mean()),
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
    """Return the share of rows that were right with high confidence and are lost to a newcomer."""
    columns = torch.tensor([after.model.bus.columns.index(i) for i in join])
    sure = (before.result.hits[was] > 0) & (before.result.confidence[was] >= SURE)
    moved = torch.isin(after.result.heaviest[own], columns) & (after.result.hits[own] == 0)
    return float((sure & moved).double().mean())


def _labels(data: ColumnData, gate: Sequence[Row]) -> list[str]:
    """Return the labels of a column's rows and gate rows; an empty string if one is not known."""
    return [*(data.labels or [""] * len(data.z)), *(r.label for r in gate)]


def _copied(new: Tensor, named: Sequence[str], old: Tensor, known: Sequence[str]) -> float:
    """Return the share of new rows ``(N, W)`` that are among old ones under another label.

    Rows are compared up to rounding; an unknown label counts as another label.
    """
    nearest, places = torch.cdist(new, old).min(-1)
    other = [not y or y != known[n] for y, n in zip(named, places.tolist(), strict=True)]
    same = nearest < SAME * new.shape[1] ** 0.5
    return float((same & torch.tensor(other)).double().mean())


def _claimed(
    after: GateAnswers, h: Tensor, data: Sequence[ColumnData], join: Collection[str]
) -> Tensor:
    """Return what each gate row loses because of the row counts that newcomers claim."""
    bus, router = after.model.bus, after.model.bus.router
    lost = torch.zeros(len(h), dtype=torch.float64)
    if not isinstance(router, Router) or router.log_prior is not None:
        return lost  # the host set its own prior
    share = router.learnt_shares(data)
    new = torch.tensor([d.column in join for d in data])
    fewer = torch.where(new, share.clamp(max=float(share[~new].max())), share)
    if torch.equal(fewer, share):
        return lost
    with torch.inference_mode():
        for piece in batched_slices(len(h), cost=len(bus.columns) * bus.answers):
            z = bus.norm(h[piece])
            alpha = bus.weights(z) * (fewer / share)
            p = bus.answer(h[piece], z, (alpha / alpha.sum(-1, keepdim=True)).to(z.dtype))
            lost[piece] = bus.task.head.right(p, after.rows[piece], bus.labels).double()
    return lost - after.result.hits


@dataclass(frozen=True, kw_only=True, eq=False)
class _Reference:
    """Linear discriminants over the labels of some columns, those of their `StatisticsRouter`.

    They use the first entries of z, as a ridge router's density does: the pooled states, if
    features are wide. Every column counts as many rows, so that a card gains nothing by claiming
    more.
    """

    router: StatisticsRouter
    labels: tuple[str, ...]

    @classmethod
    def of(cls, data: Sequence[ColumnData]) -> _Reference:
        router = StatisticsRouter(
            width=min(data[0].statistics.sums.shape[1], DENSE),
            columns=tuple(d.column for d in data),
        )
        known = [d.statistics.first(router.width) for d in data]
        rows = [float(s.counts.sum()) for s in known]
        each = sum(rows) / len(rows)
        alike = [s.times(each / n) for s, n in zip(known, rows, strict=True)]
        router.solve(
            [dataclasses.replace(d, statistics=s) for d, s in zip(data, alike, strict=True)]
        )
        return cls(router=router, labels=tuple(y for d in data for y in d.statistics.labels))

    def hits(self, z: Tensor, rows: Sequence[Row]) -> Tensor:
        """Return whether each row is answered correctly, float64 ``(N,)``."""
        z = z[:, : self.router.width]
        with torch.inference_mode():
            best = torch.nn.functional.linear(z, self.router.weight, self.router.bias).argmax(-1)
        right = [self.labels[k] == r.label for k, r in zip(best.tolist(), rows, strict=True)]
        return torch.tensor(right, dtype=torch.float64)

    def overlap(self, domain: str, own: Tensor, others: Tensor) -> float:
        """Return P(other rows lie where the densest of a domain's own do), divided by `DENSEST`."""
        column = self.router.columns.index(domain)
        with torch.inference_mode():
            dense = torch.quantile(self._density(own, column), 1 - DENSEST)
            return float((self._density(others, column) > dense).double().mean()) / DENSEST

    def _density(self, z: Tensor, column: int) -> Tensor:
        """Return log p(z) under a column's Gaussians ``(N,)``, up to a constant."""
        z = z[:, : self.router.width]
        logit: Tensor = self.router(z)[:, column]
        return (logit - 0.5 * ((z @ self.router.precision) * z).sum(-1)).double()
