"""Spans read from what is put out for words, and what any text is answered as a label."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..backbones.encoder import TextEncoder
from ..backbones.words import Word, words_of
from ..bus.head import Head
from ..bus.span_head import FoundSpan, SpanHead
from ..label_spans import Span, join_spans
from ..types import Row


def found_spans(
    head: SpanHead,
    p: Tensor,
    labels: Sequence[str],
    *,
    texts: Sequence[str],
    words: Sequence[Sequence[Word]],
) -> list[tuple[FoundSpan, ...]]:
    """Return the spans of each text.

    Args:
        head: With the thresholds of the labels.
        p: What is put out for the words of all texts, ``(N, L)``.
        labels: The L labels.
        texts: The texts.
        words: The words of each.
    """
    parts = torch.split(p, [len(some) for some in words])
    return [
        tuple(head.spans(part, labels, text=text, places=[(w.start, w.end) for w in own]))
        for text, own, part in zip(texts, words, parts, strict=True)
    ]


def read_labels(
    head: Head, p: Tensor, labels: Sequence[str], *, trunk: TextEncoder, rows: Sequence[Row]
) -> list[str]:
    """Return what is answered to each text as its label.

    Args:
        head: With the thresholds of the labels.
        p: What is put out for the texts, or for all their words, ``(N, L)``.
        labels: The L labels.
        trunk: Whose words.
        rows: The texts.
    """
    if not isinstance(head, SpanHead):
        return [a.label for a in head.read(p, labels)]
    texts = [r.text for r in rows]
    words = [words_of(trunk, text) for text in texts]
    return [spans_as_label(s) for s in found_spans(head, p, labels, texts=texts, words=words)]


def spans_as_label(found: Sequence[FoundSpan]) -> str:
    """Return the spans of a text as rows have them."""
    return join_spans(Span(s.start, s.end, s.label) for s in found)
