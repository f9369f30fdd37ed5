"""The words that spoke for and against an answer, of experts and routers that add words up.

Such an expert or router has a method `by_word`. Whatever package it is from, its scores of labels
are a sum: a term for each word of the text, and what its z adds. The difference of two scores is
such a sum as well, and is shown as the words with the largest terms, all others, and the encoder.

An expert's scores are its logits over T, so that the difference is log p(label) − log p(other
label). The expert that is explained has the largest weight of those that answer the label, which
is compared with its best other one. The router's are the log-odds of (expert, label) before its
temperature and prior. That expert is compared with the heaviest other one, by the label that has
the largest score there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import msgspec
import torch
from torch import Tensor

import redhost
from redhost.core.bus.bus import BACKBONE
from redhost.core.routers.base import LabelledRouter

__all__ = ["WORDS", "AddsWords", "ByWord", "WordEvidence", "WordTerm", "word_evidence"]

WORDS = 5
"""Number of words that are shown for an answer, and as many against it."""


class ByWord(Protocol):
    """Scores of Y labels for one text, as a sum over its words."""

    @property
    def names(self) -> Sequence[tuple[str, ...]]:
        """What is written at each of P places: a word, a pair, or several that share it."""
        ...

    @property
    def terms(self) -> Tensor:
        """What each place adds, ``(P, Y)``."""
        ...

    @property
    def encoder(self) -> Tensor:
        """What is added besides, ``(Y,)``."""
        ...


@runtime_checkable
class AddsWords(Protocol):
    """An expert, or a router with a row for each (column, label), that adds words up."""

    def by_word(self, backbone: redhost.Backbone, text: str, z: Tensor) -> ByWord | None:
        """Return its scores as a sum over words; None if it reads none.

        Args:
            backbone: The backbone of its bus.
            text: The text.
            z: The text's bus vector, ``(D,)``.
        """
        ...


class WordTerm(msgspec.Struct, frozen=True, kw_only=True):
    """What a word, or a pair of adjacent words, adds to the log-odds.

    Attributes:
        written: As the text has it; several if they are counted as one.
        log_odds: What it adds, in nats: above 0 it speaks for the label.
    """

    written: tuple[str, ...]
    log_odds: float


class WordEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """What speaks for a label rather than another one: its words and all else add up to log_odds.

    Attributes:
        part: Whether an expert decides between two of its labels, or the router between experts.
        expert: The expert of the label.
        label: The label; empty for the backbone's column.
        other_expert: The expert of the other label.
        other_label: The other label.
        log_odds: Of the label and the other one, in nats.
        words: The words with the largest terms, those for the label first.
        other_words: What all other words of the text add.
        encoder: What the encoder's vector adds, and what holds for every text.
    """

    part: Literal["expert", "router"]
    expert: str
    label: str
    other_expert: str
    other_label: str
    log_odds: float
    words: tuple[WordTerm, ...]
    other_words: float
    encoder: float

    @property
    def sentence(self) -> str:
        """What is decided, and by what."""
        if self.part == "expert":
            return f"{self.label} rather than {self.other_label}, by expert {self.expert}"
        pairs = ((self.expert, self.label), (self.other_expert, self.other_label))
        first, second = (f"{expert} ({label})" if label else expert for expert, label in pairs)
        return f"{first} rather than {second}, by the router"


def word_evidence(
    model: redhost.ComposedModel, answer: redhost.Answer, *, z: Tensor, most: int = WORDS
) -> tuple[WordEvidence, ...]:
    """Return what speaks for an answer, by word.

    Args:
        model: The composition.
        answer: Its answer to a text.
        z: The text's bus vector ``(D,)``.
        most: The most words that are shown for a label, and as many against it.
    """
    experts = dict(zip(model.bus.ids, model.bus.ensemble.parts, strict=True))
    columns = sorted(answer.weights, key=lambda i: -answer.weights[i])
    if columns[0] in experts:
        # The sum over all columns may be of a label that the heaviest one does not answer.
        columns.sort(key=lambda i: i not in experts or answer.label not in experts[i].labels)
    with torch.inference_mode():
        shown = (
            _of_expert(model, columns[0], answer, z, most),
            _of_router(model, columns[:2], answer, z, most),
        )
    return tuple(filter(None, shown))


def _of_expert(
    model: redhost.ComposedModel, column: str, answer: redhost.Answer, z: Tensor, most: int
) -> WordEvidence | None:
    """Return what speaks for an expert's answer; None if it adds no words up."""
    expert = dict(zip(model.bus.ids, model.bus.ensemble.parts, strict=True)).get(column)
    if not isinstance(expert, AddsWords) or len(expert.labels) < 2:  # noqa: PLR2004  (an answer alone)
        return None
    by_word = expert.by_word(model.backbone, answer.input, z)
    if by_word is None:
        return None
    best = _scores(by_word).argsort(descending=True, stable=True).tolist()
    rows = sorted(best, key=lambda row: expert.labels[row] != answer.label)[:2]
    return _evidence(
        "expert",
        by_word,
        [_Side(expert=column, label=expert.labels[row], row=row) for row in rows],
        temperature=expert.temperature,
        most=most,
    )


def _of_router(
    model: redhost.ComposedModel,
    columns: Sequence[str],
    answer: redhost.Answer,
    z: Tensor,
    most: int,
) -> WordEvidence | None:
    """Return what speaks for one column rather than another; None if no words do."""
    router = model.bus.router
    if not isinstance(router, AddsWords) or len(columns) < 2:  # noqa: PLR2004  (one column)
        return None
    by_word = router.by_word(model.backbone, answer.input, z)
    if by_word is None or not isinstance(router, LabelledRouter):
        return None
    scores, sides = _scores(by_word), list[_Side]()
    for column in columns:
        rows = (router.owner == model.bus.columns.index(column)).nonzero().flatten().tolist()
        labels = dict(zip(rows, _labels(model, column), strict=True))
        spoken = [row for row in rows if labels[row] == answer.label and not sides]
        row = max(spoken or rows, key=scores.tolist().__getitem__)
        sides.append(_Side(expert=column, label=labels[row], row=row))
    return _evidence("router", by_word, sides, temperature=1.0, most=most)


def _labels(model: redhost.ComposedModel, column: str) -> Sequence[str]:
    """Return the labels of a column, in the order in which a router has rows for them."""
    if column == BACKBONE:
        return [""]
    card = model.cards[column]
    if card.statistics is not None:
        return card.statistics.labels
    return sorted({*card.labels, *(r.label for r in card.rows if r.part == "fit")})


@dataclass(frozen=True, kw_only=True)
class _Side:
    """One of two labels that are compared, and its row among the scores."""

    expert: str
    label: str
    row: int


def _scores(by_word: ByWord) -> Tensor:
    """Return the scores ``(Y,)``."""
    return by_word.encoder + by_word.terms.sum(0)


def _evidence(
    part: Literal["expert", "router"],
    by_word: ByWord,
    sides: Sequence[_Side],
    *,
    temperature: float,
    most: int,
) -> WordEvidence:
    """Return what speaks for the first of two labels: its words, and what is added besides."""
    first, second = sides
    terms = (by_word.terms[:, first.row] - by_word.terms[:, second.row]) / temperature  # (P,)
    encoder = float(by_word.encoder[first.row] - by_word.encoder[second.row]) / temperature
    order = sorted(range(len(terms)), key=lambda n: -float(terms[n]))
    shown = [n for n in order[:most] if terms[n] > 0]
    shown += [n for n in order[::-1][:most] if terms[n] < 0]
    words = tuple(WordTerm(written=by_word.names[n], log_odds=float(terms[n])) for n in shown)
    total = float(terms.sum())
    return WordEvidence(
        part=part,
        expert=first.expert,
        label=first.label,
        other_expert=second.expert,
        other_label=second.label,
        log_odds=total + encoder,
        words=words,
        other_words=total - sum(w.log_odds for w in words),
        encoder=encoder,
    )
