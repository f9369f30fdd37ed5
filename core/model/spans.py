"""Spans of texts from the bus output for words, and labels of texts from any output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from ..backbones.encoder import TextEncoder
from ..backbones.words import Word, starts_of, words_of
from ..bus.head import Head, Prediction
from ..bus.span_head import FoundSpan, SpanHead
from ..label_spans import Span, join_spans
from ..types import Row


@dataclass(frozen=True, kw_only=True)
class TextWords:
    """Texts and the words of each: N texts, W words in all.

    Attributes:
        texts: The texts.
        words: The words of each.
    """

    texts: Sequence[str]
    words: Sequence[Sequence[Word]]

    @classmethod
    def read(cls, trunk: TextEncoder, texts: Sequence[str]) -> Self:
        """Return the words of texts, as a trunk splits them."""
        return cls(texts=texts, words=[words_of(trunk, text) for text in texts])

    @cached_property
    def first(self) -> Tensor:
        """The row of the first word of each text among all rows, ``(N,)``."""
        return starts_of(self.words)

    def most(self, p: Tensor) -> Tensor:
        """Return each label's largest probability in each text ``(N, L)``, from ``(W, L)``."""
        return torch.stack([part.amax(0) for part in self._by_text(p)])

    def spans(
        self, head: SpanHead, p: Tensor, labels: Sequence[str]
    ) -> list[tuple[FoundSpan, ...]]:
        """Return the spans of each text.

        Args:
            head: The head, with the thresholds of the labels.
            p: The bus output for all words, ``(W, L)``.
            labels: The L labels.
        """
        return [
            tuple(head.spans(part, labels, text=text, places=[(w.start, w.end) for w in own]))
            for text, own, part in zip(self.texts, self.words, self._by_text(p), strict=True)
        ]

    def answers(self, head: SpanHead, p: Tensor, labels: Sequence[str]) -> list[Prediction]:
        """Return the answer to each text, from its `spans`."""
        found = self.spans(head, p, labels)
        return [as_prediction(*pair) for pair in zip(found, self.most(p), strict=True)]

    def _by_text(self, p: Tensor) -> tuple[Tensor, ...]:
        return torch.split(p, [len(some) for some in self.words])


def as_prediction(found: Sequence[FoundSpan], p: Tensor) -> Prediction:
    """Return a text's spans as an answer, with the least of their probabilities, or that of none.

    Args:
        found: The spans.
        p: The largest probability of each label in the text, ``(L,)``.
    """
    sure = min((s.probability for s in found), default=float((1 - p).prod()))
    return Prediction(label=_as_label(found), probability=sure)


def read_labels(
    head: Head, p: Tensor, labels: Sequence[str], *, trunk: TextEncoder, rows: Sequence[Row]
) -> list[str]:
    """Return the answer to each text in the form of a row's label.

    Args:
        head: The head, with the thresholds of the labels.
        p: The bus output for the texts, or for all their words, ``(N, L)``.
        labels: The L labels.
        trunk: The trunk that splits texts into words.
        rows: The texts.
    """
    if not isinstance(head, SpanHead):
        return [a.label for a in head.read(p, labels)]
    words = TextWords.read(trunk, [r.text for r in rows])
    return [_as_label(found) for found in words.spans(head, p, labels)]


def _as_label(found: Sequence[FoundSpan]) -> str:
    """Return the spans of a text in the form of a row's label."""
    return join_spans(Span(s.start, s.end, s.label) for s in found)
