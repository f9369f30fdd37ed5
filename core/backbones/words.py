"""A text as a backbone whose experts answer spans sees it: a row for each of its words.

    row w       h_w = mean of the states of the word's tokens, and h, the pooled state of the text
    its answer  the labels of the spans that the word is in

Words are those that the tokenizer splits a text into before it splits these into tokens. Experts
read h_w; the router reads h, so that a text has one weight for each expert.

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
        tokens: Which of the text's tokens it is, the trunk's own marks counted.
    """

    start: int
    end: int
    tokens: tuple[int, ...]

    def is_in(self, span: Span) -> bool:
        """Say whether a span has some of it."""
        return span.start < self.end and self.start < span.end


def words_of(trunk: TextEncoder, text: str) -> list[Word]:
    """Return the words of a text, as far as the trunk reads it.

    Raises:
        UsageError: If it has none, or the tokenizer does not say which its words are.
    """
    backend = getattr(trunk.tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise UsageError(
            "this tokenizer does not say where words are",
            expected="one of the tokenizers library (tokenizer.json)",
            found=type(trunk.tokenizer).__name__,
        )
    with trunk.lock:
        trunk.tokens(text)  # leaves the backend set to cut where the trunk does
        read = backend.encode(text)
    tokens: dict[int, list[int]] = {}
    for token, word in enumerate(read.word_ids):
        if word is not None:
            tokens.setdefault(word, []).append(token)
    found = list[Word]()
    for own in tokens.values():
        start, end = read.offsets[own[0]][0], read.offsets[own[-1]][1]
        inner = text[start:end].strip()  # some tokenizers count the space before a word to it
        if inner:
            start = text.index(inner, start)
            found.append(Word(start=start, end=start + len(inner), tokens=tuple(own)))
    if not found:
        raise UsageError("a text has no words", expected="at least one", found=repr(text)[:40])
    return found


def rows_per_word(trunk: TextEncoder, rows: Sequence[Row]) -> list[Row]:
    """Return a row for each word of texts: its label is the set of the labels it is in."""
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
    """Return h and then h_w of each text's words, ``(1 + W, D)``.

    Raises:
        UsageError: If the trunk runs on an engine that gives one vector for a text.
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
    """Return h̃ = [ h_w | h ], of which experts read z_w and the router z."""
    segment = FeatureSegment(
        key="text", width=width, normalised=True, compute=None, readers=(ROUTER,), instead=True
    )
    return FeatureLayout(width=width, segments=(segment,))


def first_words(trunk: TextEncoder, texts: Sequence[str]) -> Tensor:
    """Return where the words of each text begin among the rows of all, ``(N,)``."""
    return starts_of([words_of(trunk, text) for text in texts])


def starts_of(words: Sequence[Sequence[Word]]) -> Tensor:
    """Return the same, given the words of each text, ``(N,)``."""
    counts = torch.tensor([len(some) for some in words], dtype=torch.int64)
    return counts.cumsum(0) - counts
