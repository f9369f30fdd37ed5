"""What the router ``words`` is solved from: sums of all columns, and rows to choose scalars by.

Sums are those of the cards, and of the gate rows that experts learnt from. Every row is left out of
the sums that it is in, exactly: of the counts by subtraction, of the regression by its leverage.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse
from torch import Tensor

from redhost.core.bus.experts import Expert
from redhost.core.routers.base import ColumnData
from redhost.core.routers.domain_statistics import Statistics
from redhost.core.routers.least_squares import PENALTIES, LeastSquares
from redhost.registry.errors import ContractError

from .counts import FEWEST, Counts
from .expert import Rows, WordsExpert
from .likeness import FEWEST_ROWS, MOST_ALONE, MOST_UNLIKE, loneliness, unlikeness
from .marks import keys_of
from .places import PAIRS, WIDTH, Ints, Words
from .scalars import Fitted, fit_scalars

__all__ = ["Chosen", "Evidence", "has_counts"]

Floats = npt.NDArray[np.float64]

PSEUDO = (0.001, 0.003, 0.01, 0.03)
"""Candidates for a."""

START = (0.5, 6.0, 0.2, 0.0)
"""Where the scalars of counts, scores and priors start, and what they are drawn to."""

CHOOSING = 128
"""Most rows of a column by which a and λ are chosen; the scalars are fitted to all its rows."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Chosen:
    """a, the scalars, and the regression under the chosen λ."""

    pseudo: float
    scalars: Floats
    penalty: float
    solved: LeastSquares


@dataclass(frozen=True, kw_only=True, eq=False)
class Evidence:
    """The sums of all columns, and rows that are in them.

    Attributes:
        statistics: Sums of z's states.
        sizes: The number of labels of each column.
        places: All places with counts ``(P,)``, in ascending order.
        sums: S ``(Y, P)``.
        z: The states in the rows' bus vectors ``(n, S)``.
        keys: The keys of their marks ``(n,)``.
        words: u of the rows at these places, ``(n, P)``.
        given: The part of u that is in the counts of the row's own label, ``(n, P)``.
        target: The number of each row's label, ``(n,)``.
        weight: How many rows of its column each stands for, ``(n,)``.
        few: The rows by which a and λ are chosen, ``(m,)``.
    """

    statistics: Statistics
    sizes: list[int]
    places: Ints
    sums: sparse.csr_array
    z: Tensor
    keys: Tensor
    words: sparse.csr_array
    given: sparse.csr_array
    target: Ints
    weight: Floats
    few: Ints

    @classmethod
    def of(cls, data: Sequence[ColumnData]) -> Evidence:
        """Collect the evidence of columns.

        Raises:
            ContractError: If the counts of an expert are not those of the rows that its card has.
        """
        columns = [_Column.of(d) for d in data]
        places = np.unique(np.concatenate([c.counts.places for c in columns]))
        placed = [_at(c.counts.sums, c.counts.places, places) for c in columns]
        words, given = list[sparse.csr_array](), list[sparse.csr_array]()
        target, weight, few = list[int](), list[float](), list[int]()
        sizes = [len(c.statistics.labels) for c in columns]
        for k, column in enumerate(columns):
            rows, size = column.rows, len(column.rows.labels)
            u = Words.of_segment(rows.words).among(places)
            # A place that only one text has is not counted: nothing is taken out for it.
            counted = np.isin(places, column.counts.places).astype(np.float64)
            among = (u @ sparse.diags_array(counted)).tocsr()
            column.require_counted(placed[k], among)
            words.append(u)
            given.append(among)
            few += range(len(target), len(target) + size, -(-size // CHOOSING) or 1)
            target += [sum(sizes[:k]) + column.statistics.labels.index(y) for y in rows.labels]
            weight += [float(column.statistics.counts.sum()) / max(size, 1)] * size
        # The most that an expert reads: one with fewer would else decide what all are routed by.
        states = max(c.states for c in columns)
        return cls(
            statistics=Statistics.union([c.statistics.first(states) for c in columns]),
            sizes=sizes,
            places=places,
            sums=sparse.csr_array(sparse.vstack(placed)),
            z=torch.cat([c.rows.z[:, :states] for c in columns]),
            keys=torch.cat([keys_of(c.rows.words) for c in columns]),
            words=sparse.csr_array(sparse.vstack(words)),
            given=sparse.csr_array(sparse.vstack(given)),
            target=np.array(target, dtype=np.int64),
            weight=np.array(weight),
            few=np.array(few, dtype=np.int64),
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

    def choose(self) -> Chosen:
        """Return λ, a and the scalars with the largest likelihood of the rows."""
        if not len(self.target):
            penalty = float(self.statistics.counts.sum()) / 30
            solved = LeastSquares.solve(self.statistics, penalty=penalty)
            return Chosen(pseudo=PSEUDO[1], scalars=np.array(START), penalty=penalty, solved=solved)
        few, counted = self.few, {a: self.counted(a, self.few) for a in PSEUDO}
        pseudo = min(PSEUDO, key=lambda a: self._fit([counted[a]], few).loss)
        target, best = torch.from_numpy(self.target[few]), list[tuple[float, float, LeastSquares]]()
        for penalty in PENALTIES:
            solved = LeastSquares.solve(self.statistics, penalty=penalty)
            score = solved.left_out(self.z[few], target).numpy()
            best.append((self._fit([counted[pseudo], score], few).loss, penalty, solved))
        _, penalty, solved = min(best, key=lambda tried: tried[:2])
        every = np.arange(len(self.target))
        score = solved.left_out(self.z, torch.from_numpy(self.target)).numpy()
        fitted = self._fit([self.counted(pseudo, every), score], every)
        return Chosen(pseudo=pseudo, scalars=fitted.values, penalty=penalty, solved=solved)

    def _fit(self, scores: Sequence[Floats], rows: Ints) -> Fitted:
        """Fit the scalars of counts, of scores if there are any, and of priors."""
        ones = [np.ones((len(rows), 1)) * p for p in self.priors]
        start = (*START[: len(scores)], *START[2:])
        weight = self.weight[rows]
        return fit_scalars(
            [*scores, *ones], self.target[rows], start=start, positive=len(scores), weight=weight
        )

    def counted(self, pseudo: float, rows: Ints) -> Floats:
        """Return c_y ``(m, Y)`` of rows, each left out of the counts of its own label."""
        words = self.words[rows]
        length = np.asarray(words.sum(axis=1)).ravel()
        logs = self.sums.copy()
        logs.data = np.log1p(logs.data / pseudo)
        scores = np.asarray((words @ logs.T).toarray())
        scores += length[:, None] * self._absent(self.totals, pseudo)
        scores[np.arange(len(rows)), self.target[rows]] = self._alone(pseudo, rows, self.given)
        return scores

    def without(self, pseudo: float) -> Floats:
        """Return what leaving each row out adds to c_y of its own label, ``(n,)``."""
        rows = np.arange(len(self.target))
        of_nothing = sparse.csr_array(self.given.shape)
        return self._alone(pseudo, rows, self.given) - self._alone(pseudo, rows, of_nothing)

    def _alone(self, pseudo: float, rows: Ints, given: sparse.csr_array) -> Floats:
        """Return c_y ``(m,)`` of the rows' own labels, less what rows gave to the counts."""
        words, given = self.words[rows], given[rows]
        less = (self.sums[self.target[rows]] - given).tocsr()
        less.data = np.log1p(np.maximum(less.data, 0) / pseudo)
        total = self.totals[self.target[rows]] - np.asarray(given.sum(axis=1)).ravel()
        length = np.asarray(words.sum(axis=1)).ravel()
        alone = np.asarray(words.multiply(less).sum(axis=1)).ravel()
        return np.asarray(alone + length * self._absent(total, pseudo))

    @staticmethod
    def _absent(totals: Floats, pseudo: float) -> Floats:
        """Return what a label gets for each unit of weight, at whatever place."""
        return np.asarray(np.log(pseudo) - np.log(totals + pseudo * PAIRS))


@dataclass(frozen=True, kw_only=True, eq=False)
class _Column:
    """One column: its sums, and the rows that are in them.

    Attributes:
        name: The expert's id, or the backbone column's.
        statistics: Sums of z, those of counted gate rows too.
        counts: Counts of words.
        rows: Rows that the card shows; none of rows that were drawn.
        whole: Whether the card has sums of more rows than it shows, as many as are counted.
        states: S, the dimensions of z that its expert reads; 0 if it has no expert of words.
    """

    name: str
    statistics: Statistics
    counts: Counts
    rows: Rows
    whole: bool
    states: int

    @classmethod
    def of(cls, data: ColumnData) -> _Column:
        """Return a column's sums and rows."""
        shown, statistics, expert = len(data.labels), data.statistics, _expert_of(data)
        known = data.signals["words"] if data.signals is not None and shown else data.z[:0, :0]
        words = known[:shown] if known.shape[1] else torch.zeros(shown, WIDTH)
        rows = Rows(z=data.z[:shown], words=words, labels=data.labels)
        whole = float(statistics.counts.sum()) > shown
        states = 0
        if not isinstance(expert, WordsExpert):
            found = Words.of_segment(words)
            counts = Counts.of_rows(found, data.labels, labels=statistics.labels)
        else:
            counts, states = expert.counts.by(statistics.labels), expert.W.shape[1]
            if gate := expert.gate:
                statistics = _with(statistics, gate)
                rows = Rows(
                    z=torch.cat([rows.z, gate.z]),
                    words=torch.cat([rows.words, gate.words]),
                    labels=(*rows.labels, *gate.labels),
                )
        return cls(
            name=data.column,
            statistics=statistics,
            counts=counts,
            rows=rows,
            whole=whole,
            states=states,
        )

    def require_counted(self, sums: sparse.csr_array, shown: sparse.csr_array) -> None:
        """Require counts of as many rows as the card's, of those it shows, and of their words.

        Args:
            sums: Counts ``(Y, P)``.
            shown: Words of the rows at counted places ``(n, P)``.

        Raises:
            ContractError: If they are other counts.
        """
        labels, rows = self.statistics.labels, self.statistics.counts.numpy()
        of_label = np.array([[y == label for y in self.rows.labels] for label in labels])
        least = sparse.csr_array(of_label.reshape(len(labels), -1).astype(np.float64)) @ shown
        # A card of texts has fewer rows than the counts, and no sums beside them.
        other = self.counts.rows != rows if self.whole else self.counts.rows < rows
        places, texts = np.unique(Words.of_segment(self.rows.words).places, return_counts=True)
        faults = {
            "other numbers of rows": other.any(),
            "rows that are not counted": (sums - least).min() < 0,
            "words of the card's rows that are not counted": not np.isin(
                places[texts >= FEWEST], self.counts.places
            ).all(),
            "words unlike those of the rows it shows": self._unlike(sums, shown),
            "no word that just two texts have, but many that one has: rows that are counted "
            "several times": self._repeated(sums, shown),
        }
        for fault, is_true in faults.items():
            if is_true:
                raise ContractError(
                    f"counts of words of expert {self.name!r}",
                    expected="counts of the rows that its card has, and of every word that "
                    f"{FEWEST} of those it shows have",
                    found=fault,
                    hint="Ask its author for a new build.",
                )

    def _unlike(self, sums: sparse.csr_array, shown: sparse.csr_array) -> bool:
        """Return whether the rows that are counted are unlike those that the card shows."""
        names = self.statistics.labels
        target = np.array([names.index(y) for y in self.rows.labels], dtype=np.int64)
        # Honest teams of fewer rows were not measured: their means are of two or three texts.
        if self.counts.rows.sum() < FEWEST_ROWS:
            return False
        return unlikeness(sums, self.counts.rows, shown, target) > MOST_UNLIKE

    def _repeated(self, sums: sparse.csr_array, shown: sparse.csr_array) -> bool:
        """Return whether counts are as if every row were there several times."""
        if self.counts.rows.sum() < FEWEST_ROWS:  # no word of a few long texts may be in just two
            return False
        places = Words.of_segment(self.rows.words).places
        alone = int((~np.isin(places, self.counts.places)).sum())
        return loneliness(sums, shown, alone=alone) > MOST_ALONE


def _with(statistics: Statistics, rows: Rows) -> Statistics:
    """Return sums with rows added; all their labels are in the sums already."""
    more = Statistics.of_rows(rows.z, rows.labels)
    place = torch.tensor([statistics.labels.index(y) for y in more.labels], dtype=torch.int64)
    return dataclasses.replace(
        statistics,
        counts=statistics.counts.index_add(0, place, more.counts),
        sums=statistics.sums.index_add(0, place, more.sums),
        scatter=statistics.scatter + more.scatter,
    )


def _at(sums: sparse.csr_array, places: Ints, every: Ints) -> sparse.csr_array:
    """Return sums ``(Y, P')`` at some places as columns of all places ``(Y, P)``."""
    entries = sums.tocoo()
    column = np.searchsorted(every, places)[entries.col]
    return sparse.csr_array((entries.data, (entries.row, column)), (sums.shape[0], len(every)))


def _expert_of(data: ColumnData) -> Expert | None:
    """Return the expert of a column; None for the backbone's."""
    ensemble = None if data.signals is None else data.signals.ensemble
    ids = () if ensemble is None else ensemble.ids
    return ensemble.parts[ids.index(data.column)] if ensemble and data.column in ids else None


def has_counts(data: ColumnData) -> bool:
    """Return whether a column has counts: in its expert's package, or of the backbone's rows."""
    return isinstance(_expert_of(data), WordsExpert | None)
