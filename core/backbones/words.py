"""The rows of a text if the task is spans: one row for each word.

    row w       h_w = mean of the states of the word's tokens, and h, the pooled state of the text
    its answer  the labels of the spans that the word is in

Words come from the tokenizer's pre-tokenization. Experts read h_w; the router reads h, so all words
of a text have the same routing weights.

Legend: W words, T tokens, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...registry.errors import UsageError
from ..bus.layout import ROUTER, FeatureLayout, FeatureSegment
from ..label_sets import join_labels
from ..label_spans import Span, split_spans
from ..types import Row
from .encoder import TextEncoder


@dataclass(frozen=True, kw_only=True)
class Word:
    """A word of a text.

    Attributes:
        start: Its first character.
        end: The character after its last.
        tokens: The positions of its tokens in the text, special tokens counted.
    """

    start: int
    end: int
    tokens: tuple[int, ...]

    def is_in(self, span: Span) -> bool:
        """Return whether a span overlaps the word."""
        return span.start < self.end and self.start < span.end


def words_of(trunk: TextEncoder, text: str) -> list[Word]:
    """Return the words of a text, up to the trunk's longest input.

    Raises:
        UsageError: If it has none, or the tokenizer does not report word boundaries.
    """
    backend = getattr(trunk.tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise UsageError(
            "this tokenizer does not say where words are",
            expected="one of the tokenizers library (tokenizer.json)",
            found=type(trunk.tokenizer).__name__,
        )
    with trunk.lock:
        trunk.tokens(text)  # leaves the backend set to truncate at the trunk's limit
        read = backend.encode(text)
    tokens: dict[int, list[int]] = {}
    for token, word in enumerate(read.word_ids):
        if word is not None:
            tokens.setdefault(word, []).append(token)
    found = list[Word]()
    for own in tokens.values():
        start, end = read.offsets[own[0]][0], read.offsets[own[-1]][1]
        inner = text[start:end].strip()  # some tokenizers include the space before a word
        if inner:
            start = text.index(inner, start)
            found.append(Word(start=start, end=start + len(inner), tokens=tuple(own)))
    if not found:
        raise UsageError("a text has no words", expected="at least one", found=repr(text)[:40])
    return found


def rows_per_word(trunk: TextEncoder, rows: Sequence[Row]) -> list[Row]:
    """Return a row for each word of texts: its label is the set of labels of its spans."""
    made = list[Row]()
    for row in rows:
        spans = split_spans(row.label)
        made += [
            Row(
                text=row.text[word.start : word.end],
                label=join_labels(s.label for s in spans if word.is_in(s)),
                domain=row.domain,
            )
            for word in words_of(trunk, row.text)
        ]
    return made


def word_states(trunk: TextEncoder, texts: Sequence[str]) -> list[Tensor]:
    """Return, for each text, h followed by h_w of its words, ``(1 + W, D)``.

    Raises:
        UsageError: If the trunk runs on an engine that returns one vector for each text.
    """
    if not trunk.has_states:
        raise UsageError(
            f"engine {trunk.engine!r} gives one vector for a text",
            expected="torch, where spans are answered",
            found=str(trunk.engine),
        )
    made = list[Tensor]()
    for text, states in zip(texts, trunk.states(texts), strict=True):
        rows = [states[list(word.tokens)].mean(0) for word in words_of(trunk, text)]
        made.append(torch.stack([trunk.pool(states[None])[0], *rows]))
    return made


def with_text(states: Tensor, layout: FeatureLayout | None) -> Tensor:
    """Return h̃ ``(W, …)`` of the states ``(1 + W, D)`` of one text."""
    if layout is None or not layout.segments:
        return states[1:]
    return torch.cat([states[1:], states[:1].expand(len(states) - 1, -1)], dim=-1)


def text_layout(width: int) -> FeatureLayout:
    """Return the layout h̃ = [ h_w | h ]: experts read z_w, the router reads z."""
    segment = FeatureSegment(
        key="text", width=width, normalised=True, compute=None, readers=(ROUTER,), instead=True
    )
    return FeatureLayout(width=width, segments=(segment,))


def first_words(trunk: TextEncoder, texts: Sequence[str]) -> Tensor:
    """Return the index of each text's first word among the rows of all texts, ``(N,)``."""
    return starts_of([words_of(trunk, text) for text in texts])


def starts_of(words: Sequence[Sequence[Word]]) -> Tensor:
    """Return the index of each text's first word, given the words of each text, ``(N,)``."""
    counts = torch.tensor([len(some) for some in words], dtype=torch.int64)
    return counts.cumsum(0) - counts
