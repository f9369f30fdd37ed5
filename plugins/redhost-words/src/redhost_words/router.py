"""The router ``words``: the ridge router, with the words of a text counted by label.

    c_y(x) = Σ_v u_v (ln (S_yv + a) − ln (Σ_v S_yv + a V))          multinomial naive Bayes
    u_y    = β₁ c_y + β₂ r_y + β₃ ln(n_y / N) + β₄ n_y / N          r_y: the regression's score
    logit_k = log Σ over y of k of exp(u_y)

All of it follows from sums: a card's own, and the counts of its package. Labels of a package
without counts get those of all the others together, S_v = Σ_y S_yv: c is then the score of a text
that is like none of them. a, λ and the four numbers maximise the likelihood of the cards' rows,
each left out of all sums exactly.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse
from torch import Tensor

from redhost.core.bus.ensemble import Ensemble
from redhost.core.bus.signals import RouterSignals, router_signal
from redhost.core.routers.base import ColumnData
from redhost.core.routers.domain_statistics import Statistics
from redhost.core.routers.least_squares import PENALTIES, LeastSquares
from redhost.core.routers.ridge import RidgeRouter, evened

from .counts import Counts
from .expert import WordsExpert
from .places import KEY, MOST, PAIRS, Ints, Words
from .scalars import Fitted, fit_scalars

__all__ = ["WordsRouter"]

Floats = npt.NDArray[np.float64]

PSEUDO = (0.001, 0.003, 0.01, 0.03)
"""Candidates for a."""

START = (0.5, 6.0, 0.2, 0.0)
"""Where the scalars of counts, scores and priors start, and what they are drawn to."""

SHOWN = 256
"""Most rows of a column by which the scalars are chosen."""

NOWHERE: Ints = np.zeros(0, dtype=np.int64)


@router_signal("words")
def _words(signals: RouterSignals, ensemble: Ensemble) -> Tensor:
    """Return the words of texts ``(B, 2 · MOST)``; no numbers if no expert reads them."""
    parts = ensemble.layout.parts(signals.features)
    return next((rows for s, rows in parts if s.key == KEY), signals.features[:, :0])


class WordsRouter(RidgeRouter):
    """The ridge router's rows of weights, and counts of words as a sparse table.

    ``places`` are those that some label has counts at, in ascending order, ``(P,)``; the entries of
    place p are ``labels`` and ``values`` between ``starts[p]`` and ``starts[p + 1]``; ``absent`` is
    what a label gets for each unit of weight, at whatever place, ``(Y,)``.
    """

    kind = "words"
    reads = frozenset({"words"})
    shared: ClassVar[tuple[str, ...]] = ("scale", "places", "starts", "labels", "values", "absent")

    def __init__(self, *, width: int, columns: tuple[str, ...], seed: int = 0, k: int = 0) -> None:
        super().__init__(width=width, columns=columns, seed=seed, k=k)
        for name in ("places", "labels"):
            self.register_buffer(name, torch.zeros(0, dtype=torch.int64))
        self.register_buffer("starts", torch.zeros(1, dtype=torch.int64))
        self.register_buffer("values", torch.zeros(0))
        self.register_buffer("absent", torch.zeros(0))

    places: Tensor
    starts: Tensor
    labels: Tensor
    values: Tensor
    absent: Tensor

    def added(self, signals: RouterSignals | None) -> Tensor | None:
        """Return β₁ c_y ``(B, Y)`` of the texts whose words a batch has."""
        words = None if signals is None else signals["words"]
        if words is None or not words.shape[1]:
            return None
        places, weights = words[:, :MOST], words[:, MOST:]
        scores: Tensor = weights.sum(1, keepdim=True) * self.absent  # (B, Y)
        if not len(self.places):
            return scores
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

    def solve(self, columns: Sequence[ColumnData], *, only: Collection[str] | None = None) -> None:  # noqa: ARG002
        """Solve regression and scalars, and set the table of counts."""
        columns = evened(columns)
        evidence = _Evidence.of(columns)
        chosen = evidence.choose()
        self.scale = torch.tensor([chosen.penalty, *chosen.scalars[:2]], dtype=torch.float32)
        beta, slope, *weights = chosen.scalars
        solved = LeastSquares.solve(evidence.statistics, penalty=chosen.penalty)
        prior = torch.from_numpy(np.array(weights) @ evidence.priors)
        bias = slope * solved.bias + prior
        rows = zip(
            torch.split((slope * solved.weight).float(), evidence.sizes),
            torch.split(bias.float(), evidence.sizes),
            strict=True,
        )
        index = self.columns.index
        self.replace_rows({index(d.column): row for d, row in zip(columns, rows, strict=True)})
        self._tabulate(evidence, pseudo=chosen.pseudo, beta=beta)
        first = [d.statistics.first(self.density.width) for d in columns]
        self.density.solve(
            [dataclasses.replace(d, statistics=s) for d, s in zip(columns, first, strict=True)]
        )

    def _tabulate(self, evidence: _Evidence, *, pseudo: float, beta: float) -> None:
        """Set the table of β₁ ln (S_yv / a + 1), by place, and what absent places get."""
        by_place = evidence.sums.tocsc().sorted_indices()
        values = beta * np.log1p(by_place.data / pseudo)
        self.places, self.starts, self.labels = (
            torch.from_numpy(x.astype(np.int64))
            for x in (evidence.places, by_place.indptr, by_place.indices)
        )
        self.values = torch.from_numpy(values.astype(np.float32))
        absent = beta * _absent(evidence.totals, pseudo)
        self.absent = torch.from_numpy(absent.astype(np.float32))


@dataclass(frozen=True, kw_only=True)
class _Chosen:
    """λ, a and the scalars."""

    penalty: float
    pseudo: float
    scalars: Floats


@dataclass(frozen=True, kw_only=True, eq=False)
class _Evidence:
    """The sums of all columns, and the rows by which scalars are chosen.

    Attributes:
        statistics: Sums of z.
        sizes: The number of labels of each column.
        places: All places with counts ``(P,)``, in ascending order.
        sums: S ``(Y, P)``.
        unknown: The labels without counts ``(Y,)``, which have the sums of all others.
        z: The rows' bus vectors ``(n, D)``.
        words: u of the rows at these places, ``(n, P)``.
        given: The part of u that is in the counts of the row's own label, ``(n, P)``.
        target: The number of each row's label, ``(n,)``.
        weight: How many rows of its column each stands for, ``(n,)``.
    """

    statistics: Statistics
    sizes: list[int]
    places: Ints
    sums: sparse.csr_array
    unknown: npt.NDArray[np.bool_]
    z: Tensor
    words: sparse.csr_array
    given: sparse.csr_array
    target: npt.NDArray[np.int64]
    weight: Floats

    @classmethod
    def of(cls, columns: Sequence[ColumnData]) -> _Evidence:
        """Collect the evidence of columns."""
        words = [_words_of(d) for d in columns]
        counts = [_counts_of(d, w) for d, w in zip(columns, words, strict=True)]
        parts = [d.statistics for d in columns]
        sizes = [len(p.labels) for p in parts]
        places = np.unique(np.concatenate([NOWHERE, *(c.places for c in counts if c)]))
        sums = sparse.csr_array(
            sparse.vstack(
                [
                    _at(c.sums, c.places, places) if c else sparse.csr_array((size, len(places)))
                    for c, size in zip(counts, sizes, strict=True)
                ]
            )
        )
        unknown = np.repeat([c is None for c in counts], sizes)
        z, target, weight = list[Tensor](), list[int](), list[float]()
        shown_words, given = list[sparse.csr_array](), list[sparse.csr_array]()
        for k, (d, count) in enumerate(zip(columns, counts, strict=True)):
            some = slice(None, None, max(1, -(-len(d.labels) // SHOWN)))
            labels = d.labels[some]
            if not labels:
                continue
            u = words[k].among(places)[: len(d.labels)][some]
            shown_words.append(u)
            # A place that only one text has is not counted: nothing is taken out for it.
            counted = np.isin(places, count.places if count else NOWHERE).astype(np.float64)
            given.append((u @ sparse.diags_array(counted)).tocsr())
            z.append(d.z[some])
            target += [sum(sizes[:k]) + parts[k].labels.index(y) for y in labels]
            weight += [float(parts[k].counts.sum()) / len(labels)] * len(labels)
        return cls(
            statistics=Statistics.union(parts),
            sizes=sizes,
            places=places,
            sums=sparse.csr_array(sums + unknown[:, None] * sums.sum(axis=0)[None]),
            unknown=unknown,
            z=torch.cat(z) if z else columns[0].z[:0],
            words=sparse.csr_array(sparse.vstack(shown_words)) if shown_words else sums[:0],
            given=sparse.csr_array(sparse.vstack(given)) if given else sums[:0],
            target=np.array(target, dtype=np.int64),
            weight=np.array(weight),
        )

    @property
    def totals(self) -> Floats:
        """Σ_v S_yv, ``(Y,)``."""
        return np.asarray(self.sums.sum(axis=1)).ravel()

    @property
    def priors(self) -> Floats:
        """ln(n_y / N) and n_y / N, ``(2, Y)``."""
        share = (self.statistics.counts / self.statistics.counts.sum()).numpy()
        return np.stack([np.log(np.maximum(share, 1e-12)), share])

    def choose(self) -> _Chosen:
        """Return λ, a and the scalars with the largest likelihood of the rows."""
        if not len(self.target):
            share = float(self.statistics.counts.sum()) / 30
            return _Chosen(penalty=share, pseudo=PSEUDO[1], scalars=np.array(START))
        counted = {a: self.left_out(a) for a in PSEUDO}
        ones = [np.ones((len(self.target), 1)) * p for p in self.priors]
        pseudo = min(
            PSEUDO,
            key=lambda a: self._fit([counted[a], *ones], (START[0], *START[2:]), positive=1).loss,
        )
        target = torch.from_numpy(self.target)
        best = list[tuple[Fitted, float]]()
        for penalty in PENALTIES:
            solved = LeastSquares.solve(self.statistics, penalty=penalty)
            score = solved.left_out(self.z, target).numpy()
            terms = [counted[pseudo], score, *ones]
            best.append((self._fit(terms, START, positive=2), penalty))
        fitted, penalty = min(best, key=lambda tried: tried[0].loss)
        return _Chosen(penalty=penalty, pseudo=pseudo, scalars=fitted.values)

    def _fit(self, terms: Sequence[Floats], start: Sequence[float], *, positive: int) -> Fitted:
        return fit_scalars(terms, self.target, start=start, positive=positive, weight=self.weight)

    def left_out(self, pseudo: float) -> Floats:
        """Return c_y ``(n, Y)`` of the rows, each left out of the counts of its own label."""
        logs = self.sums.copy()
        logs.data = np.log1p(logs.data / pseudo)
        scores = (self.words @ logs.T).toarray()
        scores += np.outer(self.words.sum(axis=1), _absent(self.totals, pseudo))
        own = self._alone(self.sums[self.target], self.totals[self.target], pseudo)
        scores[np.arange(len(self.target)), self.target] = own
        if self.unknown.any():
            every = int(self.unknown.argmax())
            sums = self.words.copy()
            sums.data = self.sums[[every]].toarray()[0, sums.indices]
            scores[:, self.unknown] = self._alone(sums, self.totals[every], pseudo)[:, None]
        return np.asarray(scores)

    def _alone(self, sums: sparse.csr_array, totals: Floats, pseudo: float) -> Floats:
        """Return the rows' scores ``(n,)`` for sums that each is taken out of.

        Args:
            sums: S ``(n, P)``, where a row has words at least.
            totals: Σ_v S_v, ``(n,)`` or one for all.
            pseudo: a.
        """
        less = sparse.csr_array(sums - self.given)
        less.data = np.log1p(np.maximum(less.data, 0) / pseudo)
        known = np.asarray(self.words.multiply(less).sum(axis=1)).ravel()
        length, given = (np.asarray(u.sum(axis=1)).ravel() for u in (self.words, self.given))
        return np.asarray(known + length * _absent(totals - given, pseudo))


def _absent(totals: Floats, pseudo: float) -> Floats:
    """Return what a unit of weight at a place without counts gets, given Σ_v S_v."""
    return np.asarray(np.log(pseudo) - np.log(totals + pseudo * PAIRS))


def _at(sums: sparse.csr_array, places: Ints, every: Ints) -> sparse.csr_array:
    """Return sums ``(Y, P')`` at some places as columns of all places ``(Y, P)``."""
    entries = sums.tocoo()
    column = np.searchsorted(every, places)[entries.col]
    return sparse.csr_array((entries.data, (entries.row, column)), (sums.shape[0], len(every)))


def _words_of(data: ColumnData) -> Words:
    """Return the words of a column's rows; none of rows that were drawn."""
    known = data.signals["words"] if data.signals is not None and data.labels else data.z[:0, :0]
    rows = known if known.shape[1] else torch.zeros(len(data.z), 2 * MOST)
    return Words.of_segment(rows[: len(data.labels)])


def _counts_of(data: ColumnData, words: Words) -> Counts | None:
    """Return the counts of a column: those in its expert's package, or of the backbone's rows.

    None if its package has none.
    """
    ensemble = None if data.signals is None else data.signals.ensemble
    if ensemble is None or data.column not in ensemble.ids:
        return Counts.of_rows(words, data.labels, labels=data.statistics.labels)
    expert = ensemble.parts[ensemble.ids.index(data.column)]
    if not isinstance(expert, WordsExpert):
        return None
    if expert.labels != data.statistics.labels:
        order = [expert.labels.index(y) for y in data.statistics.labels]
        return dataclasses.replace(
            expert.counts,
            labels=data.statistics.labels,
            rows=expert.counts.rows[order],
            sums=expert.counts.sums[order],
        )
    return expert.counts
