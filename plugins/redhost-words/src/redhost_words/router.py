"""The router ``words``: the ridge router, with the words of a text counted by label.

    c_y(x) = Σ_v u_v (ln (S_yv + a) − ln (Σ_v S_yv + a V))          multinomial naive Bayes
    u_y    = β₁ c_y + β₂ r_y + β₃ ln(n_y / N) + β₄ n_y / N          r_y: the regression's score
    logit_k = log Σ over y of k of exp(u_y)

All of it follows from sums: a card's own, and the counts of its package. a, λ and the four numbers
maximise the likelihood of the cards' rows, each left out of all sums exactly (`evidence`). Hosts
judge compositions on these rows: one that has a mark gets the scores of a router without it, which
its leverage h in the regression and its own words in the counts determine. Where the package of an
expert has no counts, nobody's are read: it is the ridge router.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from redhost.core.backbones.backbone import Backbone
from redhost.core.bus.ensemble import Ensemble
from redhost.core.bus.signals import RouterSignals, router_signal
from redhost.core.routers.base import ColumnData
from redhost.core.routers.least_squares import MOST_LEVERAGE
from redhost.core.routers.ridge import RidgeRouter

from .by_word import ByWord, named_words
from .evidence import Chosen, Evidence, has_counts
from .marks import keys_of
from .places import KEY, MOST, PAIRS, Channel
from .static import index_of, spread_by_label

__all__ = ["WordsRouter"]


@router_signal("words")
def _words(signals: RouterSignals, ensemble: Ensemble) -> Tensor:
    """Return the words of texts ``(B, WIDTH)``; no numbers if no expert reads them."""
    parts = ensemble.layout.parts(signals.features)
    return next((rows for s, rows in parts if s.key == KEY), signals.features[:, :0])


class WordsRouter(RidgeRouter):
    """The ridge router's rows of weights, and counts of words as a sparse table.

    ``places`` are those that some label has counts at, in ascending order, ``(P,)``; the entries of
    place p are ``labels`` and ``values`` between ``starts[p]`` and ``starts[p + 1]``; ``absent`` is
    what a label gets for each unit of weight, at whatever place, ``(Y,)``.

    ``marks`` are the keys of marked rows in ascending order ``(R,)``, with the number of each one's
    label, its ``leverage``, and what its label's counts add without it, ``uncounted``; ``prior`` is
    what labels get before z is read, ``(Y,)``.
    """

    kind = "words"
    reads = frozenset({"words"})
    shared: ClassVar[tuple[str, ...]] = (
        *("scale", "places", "starts", "labels", "values", "absent"),
        *("prior", "marks", "label", "leverage", "uncounted"),
    )

    def __init__(self, *, width: int, columns: tuple[str, ...], seed: int = 0, k: int = 0) -> None:
        super().__init__(width=width, columns=columns, seed=seed, k=k)
        for name, numbers in _no_counts().items():
            self.register_buffer(name, numbers)

    places: Tensor
    starts: Tensor
    labels: Tensor
    values: Tensor
    absent: Tensor
    prior: Tensor
    marks: Tensor
    label: Tensor
    leverage: Tensor
    uncounted: Tensor

    def added(self, signals: RouterSignals | None) -> Tensor | None:
        """Return β₁ c_y ``(B, Y)`` of the texts whose words a batch has.

        For a marked row also what leaving it out adds.
        """
        words = None if signals is None else signals["words"]
        if words is None or signals is None or not words.shape[1] or not len(self.absent):
            return None
        scores = self._counted(words[:, :MOST], words[:, MOST : 2 * MOST])
        if torch.compiler.is_compiling():
            return scores  # texts have no marks
        keys = keys_of(words)
        row = torch.searchsorted(self.marks, keys).clamp_max(max(len(self.marks) - 1, 0))
        shown = (self.marks[row] == keys).nonzero()[:, 0] if len(self.marks) else keys[:0]
        if len(shown):
            scores[shown] += self._left_out(signals.z[shown], row[shown])
        return scores

    def _left_out(self, z: Tensor, row: Tensor) -> Tensor:
        """Return what leaving rows out adds to their scores ``(B, Y)``.

            β₂ (ŷ_−i − ŷ_i) = h / (1 − h) · β₂ (ŷ_i − y_i)        y_i: 1 for the row's label, else 0

        Args:
            z: The rows' bus vectors ``(B, D)``.
            row: Their number among marked rows ``(B,)``.
        """
        own = nn.functional.one_hot(self.label[row], len(self.absent))
        score = nn.functional.linear(z, self.weight, self.bias - self.prior)  # β₂ ŷ
        h = self.leverage[row, None]
        added: Tensor = (
            h / (1 - h) * (score - self.scale[2] * own) + own * self.uncounted[row, None]
        )
        return added

    def _counted(self, places: Tensor, weights: Tensor) -> Tensor:
        """Return β₁ c_y ``(B, Y)`` of texts with words ``(B, MOST)``."""
        scores: Tensor = weights.sum(1, keepdim=True) * self.absent  # (B, Y)
        if not len(self.places):
            return scores
        if torch.compiler.is_compiling():
            return scores + spread_by_label(
                index_of(self.places, places.long() - 1),
                weights,
                starts=self.starts,
                labels=self.labels,
                values=self.values,
                count=len(self.absent),
            )
        text, slot = (places > 0).nonzero(as_tuple=True)
        place, weight = places[text, slot].long() - 1, weights[text, slot]
        index = torch.searchsorted(self.places, place).clamp_max(len(self.places) - 1)
        known = self.places[index] == place
        text, index, weight = text[known], index[known], weight[known]
        first, count = self.starts[index], self.starts[index + 1] - self.starts[index]
        # The entries of each place one after the other: sums do not depend on other texts.
        entry = torch.arange(int(count.sum())) + (
            first - count.cumsum(0) + count
        ).repeat_interleave(count)
        target = text.repeat_interleave(count) * len(self.absent) + self.labels[entry]
        values = weight.repeat_interleave(count) * self.values[entry]
        added: Tensor = scores.flatten().index_add(0, target, values)
        return added.view_as(scores)

    def of_texts(self, backbone: Backbone, texts: Sequence[str]) -> Mapping[str, Tensor]:
        """Return the words of texts, which the counts in the router's own file are enough for."""
        return {"words": Channel(backbone=backbone)(texts)}

    def by_word(self, backbone: Backbone, text: str, z: Tensor) -> ByWord | None:
        """Return what each word adds to the scores ``(Y,)``, and what the text's z ``(D,)`` adds.

        It is None where nobody's counts are read.
        """
        words, names = named_words(backbone, text)
        each = dataclasses.replace(words, sizes=np.ones_like(words.places))  # a text for each word
        terms = self.added(RouterSignals(z[None], values={"words": each.segment()}))
        encoder = nn.functional.linear(z, self.weight, self.bias)
        return None if terms is None else ByWord(names=names, terms=terms, encoder=encoder)

    def solve(self, columns: Sequence[ColumnData], *, only: Collection[str] | None = None) -> None:
        """Solve regression and scalars, and set the tables of counts and of marked rows."""
        if not all(has_counts(d) for d in columns):
            super().solve(columns, only=only)
            for name, numbers in _no_counts().items():
                setattr(self, name, numbers)
            return
        columns = self.evened(columns)
        evidence = Evidence.of(columns)
        chosen = evidence.choose()
        self.scale = torch.tensor([chosen.penalty, *chosen.scalars[:2]], dtype=torch.float32)
        _, slope, *weights = chosen.scalars
        prior = torch.from_numpy(np.array(weights) @ evidence.priors)
        weight = nn.functional.pad(  # hashed tokens say what counts say
            slope * chosen.solved.weight, (0, self.width - evidence.z.shape[1])
        )
        rows = zip(
            torch.split(weight.float(), evidence.sizes),
            torch.split((slope * chosen.solved.bias + prior).float(), evidence.sizes),
            strict=True,
        )
        self.replace_rows({d.column: row for d, row in zip(columns, rows, strict=True)})
        self.prior = prior.float()
        self._tabulate(evidence, chosen)
        self._mark(evidence, chosen)
        first = [d.statistics.first(self.density.width) for d in columns]
        self.density.solve(
            [dataclasses.replace(d, statistics=s) for d, s in zip(columns, first, strict=True)]
        )

    def most_background(self, experts: Sequence[ColumnData]) -> int:
        """Return the number of rows of the largest label: here all labels compete as one."""
        if not all(map(has_counts, experts)):
            return super().most_background(experts)
        return max((int(d.statistics.counts.max()) for d in experts), default=0)

    def _tabulate(self, evidence: Evidence, chosen: Chosen) -> None:
        """Set the table of β₁ ln (S_yv / a + 1), by place, and what absent places get."""
        beta, pseudo = chosen.scalars[0], chosen.pseudo
        by_place = evidence.sums.tocsc().sorted_indices()
        self.places, self.starts, self.labels = (
            torch.from_numpy(x.astype(np.int64))
            for x in (evidence.places, by_place.indptr, by_place.indices)
        )
        self.values = torch.from_numpy((beta * np.log1p(by_place.data / pseudo)).astype(np.float32))
        absent = np.log(pseudo) - np.log(evidence.totals + pseudo * PAIRS)
        self.absent = torch.from_numpy((beta * absent).astype(np.float32))

    def _mark(self, evidence: Evidence, chosen: Chosen) -> None:
        """Set the table of marked rows."""
        rows = (evidence.keys > 0).nonzero()[:, 0]
        keys, order = evidence.keys[rows].sort()
        rows = rows[order]
        off = (evidence.z[rows].double() - chosen.solved.mean).T
        white = torch.linalg.solve_triangular(chosen.solved.factor, off, upper=False)
        leverage = (1 / chosen.solved.rows + white.square().sum(0)).clamp(max=MOST_LEVERAGE)
        uncounted = chosen.scalars[0] * torch.from_numpy(evidence.without(chosen.pseudo))[rows]
        self.marks, self.label = keys, torch.from_numpy(evidence.target)[rows]
        self.leverage, self.uncounted = leverage.float(), uncounted.float()


def _no_counts() -> dict[str, Tensor]:
    """Return the buffers of tables without entries."""
    whole = {name: torch.zeros(0) for name in ("places", "labels", "marks", "label")}
    table = {name: numbers.long() for name, numbers in whole.items()}
    broken = ("values", "absent", "prior", "leverage", "uncounted")
    return {**table, "starts": torch.zeros(1).long(), **{name: torch.zeros(0) for name in broken}}
