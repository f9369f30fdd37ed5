"""Measure what newcomers cost the other domains, beyond the unavoidable loss.

More labels are easier to confuse: with any classifier, other domains lose rows when experts join.
So a domain's fall is compared with that of a reference that uses no expert: linear discriminants
over all labels, from the sums of the same cards, before and after, on the same gate rows:

    excess = fall − fall of the reference, with the standard error of the mean of the paired
             differences over the domain's n gate rows

A member whose package changed is judged as a newcomer too, but is excused nothing: it was
there before. A card may also mislead the reference, and so raise what is excused. More numbers per
domain therefore measure which domain the newcomers' rows belong to, and which rows they take:

    overlap = P(a newcomer's gate row is nearer to the domain) + P(a gate row of the domain is
              nearer to the newcomer), by the reference: an estimate of ∫ min(p, q), which is 0 for
              rows that can be separated (neighbours), and 1 for rows of the domain itself; or
              twice the latter, if that is more by a standard error (`blur`)
    taken   = share of gate rows that were right with high confidence (p ≥ .9), are wrong now,
              have a newcomer as their heaviest column, and are not lost by the reference
    mass    = the mean fall of the right label's probability, the first effect of a copied card
    copied  = share of a newcomer's shown rows that equal, number by number, rows of a member's card
              under another label; with the same label the newcomer answers as the member does
    claimed = share of gate rows that would be right but for the row counts that newcomers claim:
              with α_k q_k / p_k in place of α, p the columns' shares of all rows, and q the same
              with no newcomer's share above the largest member's (`composition.prior`), nor an
              updated member's above that and its own before

In the reference every column counts as many rows, independent of the row count a card claims.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from ..batching import batched_slices
from ..evaluation.judge import EvaluationResult
from ..model.composed import ComposedModel
from ..receipt import ExcessHarm
from ..routers.base import ColumnData, Router
from ..routers.cards import Card
from ..routers.ridge import DENSE
from ..routers.statistics import StatisticsRouter
from ..types import Row

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
    """Measure what each domain of both compositions loses to new and updated experts.

    Args:
        before: The answers of the current composition.
        after: The answers of the new one.
        data: The data of the new one's cards, by column.
        h: Features of the new one's gate rows, ``(N, D)``.

    Returns:
        By domain; empty if no expert joins or changes, or if answers are not labels of whole texts.
    """
    bus, updated = after.model.bus, updated_members(before.model, after.model)
    stay = [i for i in bus.ids if i in before.model.bus.ids]
    new = [i for i in bus.ids if i not in stay]
    join = [*new, *updated]
    by_id = {d.column: d for d in data}
    # Without a newcomer or an update nobody can take anything.
    if not stay or not join or not bus.task.one_label:
        return {}
    z = bus.layout.router_input(bus.norm(h))
    claimed = _claimed(after, h, data, _largest_shares(before, after, data, join))
    # Solved twice: before and after are the same method on the same rows, so the difference is what
    # more labels cost it.
    first, then = (_Reference.of([by_id[i] for i in members]) for members in (stay, bus.ids))
    lost = first.hits(z, after.rows) - then.hits(z, after.rows)  # (N,)
    rows = {i: torch.cat([by_id[i].z, z[after.of(i)]]) for i in bus.ids}
    labels = {i: _labels(by_id[i], [after.rows[n] for n in after.of(i).tolist()]) for i in bus.ids}
    harm = {}
    for domain in stay:
        now, was, others = after.of(domain), before.of(domain), [i for i in join if i != domain]
        # An update may bring other gate rows, which cannot be paired with those before.
        if others and len(now) and len(now) == len(was):
            fall = before.result.hits[was] - after.result.hits[now]
            difference = fall - lost[now]
            error = float(difference.std(correction=0)) / len(now) ** 0.5
            estimates = [then.overlaps((domain, i), z[now], z[after.of(i)]) for i in others]
            likelier = _likelihood(before, was) - _likelihood(after, now)
            overlap, blur = max(chain(*estimates), key=lambda pair: pair[0] - pair[1])
            harm[domain] = ExcessHarm(
                fall=float(fall.mean()),
                reference=float(lost[now].mean()),
                excess=float(difference.mean()),
                # An update alone adds no label to be confused with: no noise is excused.
                error=error if new else 0.0,
                overlap=overlap,
                blur=blur,
                taken=_taken(before, after, was, now, others, spared=lost[now] < 1),
                mass=float(likelier.mean()),
                mass_error=float(likelier.std(correction=0)) / len(now) ** 0.5,
                copied=max(
                    _copied(rows[i], labels[i], rows[domain], labels[domain]) for i in others
                ),
                claimed=float(claimed[now].mean()),
            )
    return harm


def updated_members(before: ComposedModel, after: ComposedModel) -> tuple[str, ...]:
    """Return the experts of both compositions whose package changed, weights, card or anything."""
    return tuple(i for i, d in after.digests.items() if before.digests.get(i, d) != d)


def _likelihood(answers: GateAnswers, rows: Tensor) -> Tensor:
    """Return the probability of some rows' right labels ``(N,)``; 0 where it is not known."""
    calibration = answers.result.calibration
    if calibration is None or calibration.likelihood is None:
        return torch.zeros(len(rows), dtype=torch.float64)
    return calibration.likelihood[rows].double()


def _taken(
    before: GateAnswers,
    after: GateAnswers,
    was: Tensor,
    now: Tensor,
    join: Sequence[str],
    *,
    spared: Tensor,
) -> float:
    """Return the share of rows that were right with high confidence and are lost to a newcomer.

    Only spared rows count: those that the reference does not lose, ``(N,)``.
    """
    columns = torch.tensor([after.model.bus.columns.index(i) for i in join])
    sure = (before.result.hits[was] > 0) & (before.result.confidence[was] >= SURE)
    # Wrong alone proves nothing: the newcomer must have the largest weight on the row.
    moved = torch.isin(after.result.heaviest[now], columns) & (after.result.hits[now] == 0)
    return float((sure & moved & spared).double().mean())


def _labels(data: ColumnData, gate: Sequence[Row]) -> list[str]:
    """Return the labels of a column's rows and gate rows; an empty string if one is not known."""
    return [*(data.labels or [""] * len(data.z)), *(r.label for r in gate)]


def _copied(new: Tensor, named: Sequence[str], old: Tensor, names: Sequence[str]) -> float:
    """Return the share of new rows ``(N, W)`` that are among old ones under another label.

    Rows are compared up to rounding; an unknown label counts as another label.
    """
    # Compared as vectors: cards may show no text, and may be rounded.
    nearest, places = torch.cdist(new, old).min(1)
    other = [not y or y != names[n] for y, n in zip(named, places.tolist(), strict=True)]
    near = nearest < SAME * new.shape[1] ** 0.5
    return float((near & torch.tensor(other)).double().mean())


def _largest_shares(
    before: GateAnswers, after: GateAnswers, data: Sequence[ColumnData], join: Collection[str]
) -> Tensor | None:
    """Return the columns' shares of all rows, no joining one's larger than any member's ``(K,)``.

    An updated member keeps a share as large as its own was. None if the shares are the host's.
    """
    router = after.model.bus.router
    # With shares that the host set, the counts of cards weigh nothing.
    if not isinstance(router, Router) or router.log_prior is not None:
        return None
    share = router.learnt_shares(data)
    limits = share.clone()
    for k, d in enumerate(data):
        if d.column in join:
            card, count = before.model.cards.get(d.column), float(d.statistics.counts.sum())
            limits[k] = share[k] * min(1.0, _count(card) / count) if card is not None else 0.0
    return share.clamp(max=float(limits.max()))


def _count(card: Card) -> float:
    """Return the number of rows that a card says it has."""
    if card.statistics is not None:
        return float(card.statistics.counts.sum())
    return float(len(card.labels) or sum(row.part == "fit" for row in card.rows))


def _claimed(
    after: GateAnswers, h: Tensor, data: Sequence[ColumnData], fewer: Tensor | None
) -> Tensor:
    """Return what each gate row loses because of the row counts that newcomers claim."""
    bus, router = after.model.bus, after.model.bus.router
    lost = torch.zeros_like(after.result.hits)
    if fewer is None or not isinstance(router, Router):
        return lost
    share = router.learnt_shares(data)
    if torch.equal(fewer, share):
        return lost
    with torch.inference_mode():
        for piece in batched_slices(len(h), cost=len(bus.columns) * bus.answers):
            z = bus.norm(h[piece])
            # Saerens et al. 2002: posteriors under other shares, without training a router again.
            alpha = bus.weights(z) * (fewer / share)
            p = bus.answer(h[piece], z, (alpha / alpha.sum(1, keepdim=True)).to(z.dtype))
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
        each = sum(float(d.statistics.counts.sum()) for d in data) / len(data)
        sums = {d.column: d.statistics.first(router.width) for d in data}
        # Equal weights, so that a card cannot mislead the reference by claiming many rows.
        alike = {column: s.times(each / float(s.counts.sum())) for column, s in sums.items()}
        router.solve([dataclasses.replace(d, statistics=alike[d.column]) for d in data])
        return cls(router=router, labels=tuple(y for d in data for y in d.statistics.labels))

    def hits(self, z: Tensor, rows: Sequence[Row]) -> Tensor:
        """Return whether each row is answered correctly, float64 ``(N,)``."""
        z = z[:, : self.router.width]
        with torch.inference_mode():
            best = torch.nn.functional.linear(z, self.router.weight, self.router.bias).argmax(1)
        right = [self.labels[k] == r.label for k, r in zip(best.tolist(), rows, strict=True)]
        return torch.tensor(right, dtype=torch.float64)

    def overlaps(
        self, columns: Sequence[str], rows: Tensor, others: Tensor
    ) -> list[tuple[float, float]]:
        """Return estimates of the overlap of a domain and a newcomer, with their standard errors.

        The first is from the domain's gate rows ``(N, D)`` alone, counted twice, because a newcomer
        chooses its own; with none of these the second is NaN.
        """
        pair = [self.router.columns.index(column) for column in columns]
        with torch.inference_mode():
            margins = [
                self.router(z[:, : self.router.width])[:, pair].diff() for z in (rows, others)
            ]
        confused = [(margins[0] > 0).double(), (margins[1] < 0).double()]
        # Laplace's rule, a row wrong and one right: of few rows all may be right by luck.
        doubt = [
            torch.cat([x, x.new_tensor([[0], [1]])]).std(correction=0) / len(x) ** 0.5
            for x in confused
        ]
        return [
            (2 * float(confused[0].mean()), 2 * float(doubt[0])),
            (float(confused[0].mean() + confused[1].mean()), float(torch.stack(doubt).norm())),
        ]
