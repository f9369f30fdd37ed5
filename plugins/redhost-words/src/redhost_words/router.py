"""The router ``words``: the ridge router, with the words of a text counted by label.

    c_y(x) = Σ_v u_v (ln (S_yv + a) − ln (Σ_v S_yv + a V))          multinomial naive Bayes
    u_y    = β₁ c_y + β₂ r_y + β₃ ln(n_y / N) + β₄ n_y / N          r_y: the regression's score
    logit_k = log Σ over y of k of exp(u_y)

All of it follows from sums: a card's own, and the counts of its package. a, λ and the four numbers
maximise the likelihood of the cards' rows, each left out of all sums exactly. Where the package of
an expert has no counts, nobody's are read: it is the ridge router.
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
from torch import Tensor, nn

from redhost.core.backbones.backbone import Backbone
from redhost.core.bus.ensemble import Ensemble
from redhost.core.bus.experts import Expert
from redhost.core.bus.signals import RouterSignals, router_signal
from redhost.core.routers.base import ColumnData
from redhost.core.routers.domain_statistics import Statistics
from redhost.core.routers.least_squares import PENALTIES, LeastSquares
from redhost.core.routers.ridge import RidgeRouter, evened
from redhost.registry.errors import ContractError

from .by_word import ByWord, named_words
from .counts import FEWEST, Counts
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
        for name, numbers in _no_counts().items():
            self.register_buffer(name, numbers)

    places: Tensor
    starts: Tensor
    labels: Tensor
    values: Tensor
    absent: Tensor

    def added(self, signals: RouterSignals | None) -> Tensor | None:
        """Return β₁ c_y ``(B, Y)`` of the texts whose words a batch has."""
        words = None if signals is None else signals["words"]
        if words is None or not words.shape[1] or not len(self.absent):
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
        """Solve regression and scalars, and set the table of counts."""
        if not all(_has_counts(d) for d in columns):
            super().solve(columns, only=only)
            for name, numbers in _no_counts().items():
                setattr(self, name, numbers)
            return
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
        absent = np.log(pseudo) - np.log(evidence.totals + pseudo * PAIRS)
        self.absent = torch.from_numpy((beta * absent).astype(np.float32))


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
    z: Tensor
    words: sparse.csr_array
    given: sparse.csr_array
    target: npt.NDArray[np.int64]
    weight: Floats

    @classmethod
    def of(cls, columns: Sequence[ColumnData]) -> _Evidence:
        """Collect the evidence of columns.

        Raises:
            ContractError: If the counts of an expert are not those of the rows that its card has.
        """
        words = [_words_of(d) for d in columns]
        counts = [_counts_of(d, w) for d, w in zip(columns, words, strict=True)]
        places = np.unique(np.concatenate([c.places for c in counts]))
        placed = [_at(c.sums, c.places, places) for c in counts]
        parts = [d.statistics for d in columns]
        sizes = [len(p.labels) for p in parts]
        z, target, weight = list[Tensor](), list[int](), list[float]()
        shown_words, given = list[sparse.csr_array](), list[sparse.csr_array]()
        for k, (d, count) in enumerate(zip(columns, counts, strict=True)):
            u = words[k].among(places)[: len(d.labels)]
            # A place that only one text has is not counted: nothing is taken out for it.
            counted = np.isin(places, count.places).astype(np.float64)
            among = (u @ sparse.diags_array(counted)).tocsr()
            _require_counted(d, count, placed[k], among)
            _require_places(d, count, words[k])
            some = slice(None, None, max(1, -(-len(d.labels) // SHOWN)))
            labels = d.labels[some]
            if not labels:
                continue
            shown_words.append(u[some])
            given.append(among[some])
            z.append(d.z[some])
            target += [sum(sizes[:k]) + parts[k].labels.index(y) for y in labels]
            weight += [float(parts[k].counts.sum()) / len(labels)] * len(labels)
        return cls(
            statistics=Statistics.union(parts),
            sizes=sizes,
            places=places,
            sums=sparse.csr_array(sparse.vstack(placed)),
            z=torch.cat(z) if z else columns[0].z[:0],
            words=sparse.csr_array(sparse.vstack(shown_words)) if shown_words else placed[0][:0],
            given=sparse.csr_array(sparse.vstack(given)) if given else placed[0][:0],
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
        length = np.asarray(self.words.sum(axis=1)).ravel()
        logs = self.sums.copy()
        logs.data = np.log1p(logs.data / pseudo)
        scores = (self.words @ logs.T).toarray()
        scores += length[:, None] * (np.log(pseudo) - np.log(self.totals + pseudo * PAIRS))
        rows = np.arange(len(self.target))
        own = self.sums[self.target]
        less = (own - self.given).tocsr()
        less.data = np.log1p(np.maximum(less.data, 0) / pseudo)
        total = self.totals[self.target] - np.asarray(self.given.sum(axis=1)).ravel()
        alone = np.asarray(self.words.multiply(less).sum(axis=1)).ravel()
        scores[rows, self.target] = alone + length * (
            np.log(pseudo) - np.log(total + pseudo * PAIRS)
        )
        return np.asarray(scores)


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


def _no_counts() -> dict[str, Tensor]:
    """Return the buffers of a table without entries."""
    whole = {"places": torch.zeros(0), "labels": torch.zeros(0), "starts": torch.zeros(1)}
    table = {name: numbers.long() for name, numbers in whole.items()}
    return {**table, "values": torch.zeros(0), "absent": torch.zeros(0)}


def _expert_of(data: ColumnData) -> Expert | None:
    """Return the expert of a column; None for the backbone's."""
    ensemble = None if data.signals is None else data.signals.ensemble
    ids = () if ensemble is None else ensemble.ids
    return ensemble.parts[ids.index(data.column)] if ensemble and data.column in ids else None


def _has_counts(data: ColumnData) -> bool:
    """Return whether a column has counts: in its expert's package, or of the backbone's rows."""
    return isinstance(_expert_of(data), WordsExpert | None)


def _require_counted(
    data: ColumnData, counts: Counts, sums: sparse.csr_array, shown: sparse.csr_array
) -> None:
    """Require that counts ``(Y, P)`` are of as many rows as the card's, those it shows among them.

    Raises:
        ContractError: If they are not.
    """
    labels = data.statistics.labels
    of_label = np.array([[y == label for y in data.labels] for label in labels], dtype=np.float64)
    least = sparse.csr_array(of_label.reshape(len(labels), -1)) @ shown
    rows = data.statistics.counts.numpy()
    # A card of texts has fewer rows than the counts, and no sums beside them.
    has_sums = rows.sum() > len(data.labels)
    other = counts.rows != rows if has_sums else counts.rows < rows
    if other.any() or (sums - least).min() < 0:
        raise ContractError(
            f"counts of words of expert {data.column!r}",
            expected="counts of the rows that its card has, those it shows among them",
            found="other numbers of rows" if other.any() else "rows that are not counted",
            hint="Ask its author for a new build.",
        )


def _require_places(data: ColumnData, counts: Counts, words: Words) -> None:
    """Require that counts have the places that several of the rows which the card shows have.

    Raises:
        ContractError: If they have not.
    """
    places, texts = np.unique(words.places, return_counts=True)
    if not np.isin(places[texts >= FEWEST], counts.places).all():
        raise ContractError(
            f"counts of words of expert {data.column!r}",
            expected=f"counts of every word that {FEWEST} of its rows have",
            found="words of the card's rows that are not counted",
            hint="Ask its author for a new build.",
        )


def _counts_of(data: ColumnData, words: Words) -> Counts:
    """Return the counts of a column."""
    expert = _expert_of(data)
    if not isinstance(expert, WordsExpert):
        return Counts.of_rows(words, data.labels, labels=data.statistics.labels)
    if expert.labels != data.statistics.labels:
        order = [expert.labels.index(y) for y in data.statistics.labels]
        return dataclasses.replace(
            expert.counts,
            labels=data.statistics.labels,
            rows=expert.counts.rows[order],
            sums=expert.counts.sums[order],
        )
    return expert.counts
