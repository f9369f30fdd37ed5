"""Train baselines on the pooled rows of all teams, which no single team has.

Pooled rows include the cards' rows and the validation rows. C of the logistic regressions, and the
weight of the states, are chosen on the experts' validation rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import product
from typing import Any

import numpy as np
import torch
from redhost_author.training.data import DataSplits
from redhost_words.counts import FEWEST
from redhost_words.places import Words, channel
from redhost_words.ridge import idf_of, normalised
from scipy import sparse
from torch import Tensor

import redhost
from red_lab.study import require_scikit_learn
from red_lab.text.desk import Desk, hits, inputs_of

__all__ = ["POOLED", "logistic", "ridge", "words_of"]

TF_IDF = (3.0, 10.0, 30.0, 100.0)
"""C of logistic regression on tf-idf."""

STATES = (0.03, 0.1, 0.3)
"""Weight of the states: the squared length of z beside words of length 1."""

INVERSE = (3.0, 10.0, 30.0)
"""C of logistic regression on words and states."""

CARD = 256
"""Rows that a card may show; that of the pooled rows is not used."""

Rows = Sequence[redhost.Row]


def tf_idf(desk: Desk) -> list[float]:
    """Fit scikit-learn's logistic regression on tf-idf of whole texts, with no encoder."""
    require_scikit_learn()
    library: Any = import_module("sklearn.feature_extraction.text")
    regression: Any = import_module("sklearn.linear_model").LogisticRegression
    learn, valid = _pooled(desk)
    known = library.TfidfVectorizer(sublinear_tf=True, analyzer=str.split)
    known.fit([r.text for r in learn])

    def fitted(inverse: float, rows: Rows) -> Any:
        model = regression(C=inverse, max_iter=300)
        return model.fit(known.transform([r.text for r in rows]), [r.label for r in rows])

    def right(model: Any, rows: Rows) -> list[float]:
        answers = model.predict(known.transform([r.text for r in rows]))
        return [float(y == r.label) for y, r in zip(answers, rows, strict=True)]

    best = max(TF_IDF, key=lambda c: sum(right(fitted(c, learn), valid)))
    return right(fitted(best, [*learn, *valid]), desk.test)


def ridge(desk: Desk) -> list[float]:
    """Train the product's expert of words on all rows, as those of one team."""
    parts = desk.parts.values()
    rows = DataSplits(
        train=tuple(r for rows in parts for r in rows.rows),  # those of the cards too
        valid=(),
        fit=tuple(r for rows in parts for r in rows.fit)[:CARD],
        gate=tuple(r for rows in parts for r in rows.gate)[:CARD],
    )
    folder = desk.author("everyone", rows, where=f"{desk.corpus.name}-pooled", form="words")
    expert = inputs_of(desk, [folder]).candidates.experts["everyone"].expert
    z = torch.cat([desk.z(desk.test), words_of(desk, desk.test).segment()], dim=1)
    with torch.inference_mode():
        return hits(expert.labels, expert(z), desk.test)


def logistic(desk: Desk) -> list[float]:
    """Fit logistic regression on words and states until it converges."""
    learn, valid = _pooled(desk)
    labels = sorted({r.label for r in learn})
    train, aside = _Features.of(desk, learn), _Features.of(desk, valid, like=learn)

    def right(chosen: tuple[float, float]) -> float:
        share, inverse = chosen
        fitted = train.fit(labels, share=share, inverse=inverse)
        return sum(hits(labels, aside.scores(fitted, share=share), valid))

    share, inverse = max(product(STATES, INVERSE), key=right)
    everyone = [*learn, *valid]
    fitted = _Features.of(desk, everyone).fit(labels, share=share, inverse=inverse)
    test = _Features.of(desk, desk.test, like=everyone)
    return hits(labels, test.scores(fitted, share=share), desk.test)


POOLED: Mapping[str, Callable[[Desk], list[float]]] = {
    "pooled tf-idf": tf_idf,
    "pooled logistic": logistic,
    "pooled ridge": ridge,
}
"""Name of a system → hits on the test rows."""


def words_of(desk: Desk, rows: Iterable[redhost.Row]) -> Words:
    """Return the words of rows."""
    compute = channel(desk.context.backbone).compute
    if compute is None:
        raise TypeError("words are computed from texts")
    return Words.of_segment(compute([r.text for r in rows]))


def _pooled(desk: Desk) -> tuple[list[redhost.Row], list[redhost.Row]]:
    """Return all teams' rows: those to learn from, and the validation rows."""
    parts = desk.parts.values()
    learn = [r for rows in parts for r in (*rows.train, *rows.fit, *rows.gate)]
    return learn, [r for rows in parts for r in rows.valid]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Features:
    """Words f ``(N, P)`` and states z / √D ``(N, D)`` of rows, and the labels of the rows."""

    words: sparse.csr_array
    states: Tensor
    answers: list[str]

    @classmethod
    def of(cls, desk: Desk, rows: Rows, *, like: Rows | None = None) -> _Features:
        """Return the features of rows, at the places and with the idf of others' words."""
        given = words_of(desk, rows)
        known = given if like is None else words_of(desk, like)
        places, texts = np.unique(known.places, return_counts=True)
        places = places[texts >= FEWEST]
        z = desk.z(rows)
        return cls(
            words=normalised(given.among(places), idf_of(known.among(places))).astype(np.float32),
            states=z / z.shape[1] ** 0.5,
            answers=[r.label for r in rows],
        )

    def scores(self, fitted: Sequence[Tensor], *, share: float) -> Tensor:
        """Return logits ``(N, L)``."""
        words, states, bias = fitted
        read = torch.from_numpy(self.words @ words.numpy())
        logits: Tensor = read + share**0.5 * (self.states @ states) + bias
        return logits

    def fit(self, labels: Sequence[str], *, share: float, inverse: float) -> list[Tensor]:
        """Minimise −mean log p + ‖W‖² / (2 C N) over W of words and states; b has no penalty."""
        rows = torch.arange(len(self.answers))
        target = torch.tensor([labels.index(y) for y in self.answers])
        turned = self.words.T.tocsr()
        wide = [self.words.shape[1], self.states.shape[1]]
        fitted = [torch.zeros(d, len(labels)) for d in wide] + [torch.zeros(len(labels))]
        decay = 1 / (inverse * len(rows))
        optimiser = torch.optim.LBFGS(
            fitted,
            max_iter=1000,
            tolerance_grad=1e-5,
            history_size=10,
            line_search_fn="strong_wolfe",
        )

        def loss() -> Tensor:
            logs = self.scores(fitted, share=share).log_softmax(-1)
            off = logs.exp()
            off[rows, target] -= 1
            off /= len(rows)
            words, states, bias = fitted
            words.grad = torch.from_numpy(turned @ off.numpy()) + decay * words
            states.grad = share**0.5 * (self.states.T @ off) + decay * states
            bias.grad = off.sum(0)
            squares = words.square().sum() + states.square().sum()
            return -logs[rows, target].mean() + decay / 2 * squares

        optimiser.step(loss)  # type: ignore[no-untyped-call]
        return fitted
