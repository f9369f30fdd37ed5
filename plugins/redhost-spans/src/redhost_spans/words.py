"""The rows of a text if the task is spans: one row for each word.

    row w       h_w = mean of the states of the word's tokens, and h, the pooled state of the text
    its answer  the labels of the spans that the word is in

Words come from the tokenizer's pre-tokenization. Experts read h_w; the router reads h, so all words
of a text have the same routing weights.

Legend: W words, T tokens, D width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from redhost.core.backbones.encoder import TextEncoder
from redhost.core.bus.head import Head, Prediction
from redhost.core.bus.layout import ROUTER, FeatureLayout, FeatureSegment
from redhost.core.bus.unit import Inside, TextAnswers, Unit
from redhost.core.label_sets import join_labels
from redhost.core.types import Row
from redhost.registry.errors import UsageError
from redhost_spans.label_spans import Span, split_spans
from redhost_spans.pipeline import TokenClassification
from redhost_spans.span_head import SpanHead, gate_words


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


@dataclass(frozen=True)
class Words(Unit[TextEncoder]):
    """Each word of a text is a row."""

    classifier = False
    name, does, silence = "word", "answers spans", False  # whether a word has no label is not known

    @property
    def pipeline(self) -> type[TokenClassification]:
        """A host as the pipeline ``token-classification`` of transformers."""
        return TokenClassification

    def require(self, trunk: TextEncoder, text: str) -> None:
        """Check that a text has words."""
        words_of(trunk, text)

    def rows(self, trunk: TextEncoder, rows: Sequence[Row]) -> list[Row]:
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

    def states(self, trunk: TextEncoder, texts: Sequence[str]) -> list[Tensor]:
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

    def features(self, states: Tensor, layout: FeatureLayout | None, *, eps: float) -> Tensor:
        """Return h̃ ``(W, …)`` of the states ``(1 + W, D)`` of one text."""
        if layout is None or not layout.segments:
            return states[1:]
        return torch.cat([states[1:], states[:1].expand(len(states) - 1, -1)], dim=-1)

    def layout(self, width: int) -> FeatureLayout:
        """Return the layout h̃ = [ h_w | h ]: experts read z_w, the router reads z."""
        segment = FeatureSegment(
            key="text",
            width=width,
            normalised=True,
            compute=None,
            readers=(ROUTER,),
            instead=True,
        )
        return FeatureLayout(width=width, segments=(segment,))

    def refuses_inside(self, acts: Inside | None) -> str | None:
        """Return that experts above the blocks are expected."""
        return "an expert above the blocks for spans"

    def router_rows(self, trunk: TextEncoder, texts: Sequence[str], rows: Tensor) -> Tensor:
        """Return the first words' rows: the router's input is the same for all words of a text."""
        return self.answers(trunk, texts).first(rows)

    def gate_places(self, labels: Sequence[str]) -> Tensor | None:
        """Return the words with a label, and as many others (`gate_words`)."""
        return gate_words(labels)

    def answers(self, trunk: TextEncoder, texts: Sequence[str]) -> TextWords:
        """Return the words of texts, as the trunk splits them."""
        return TextWords(texts=texts, words=[words_of(trunk, text) for text in texts])


@dataclass(frozen=True, kw_only=True)
class TextWords(TextAnswers):
    """Texts and the words of each: N texts, W words in all.

    Attributes:
        texts: The texts.
        words: The words of each.
    """

    texts: Sequence[str]
    words: Sequence[Sequence[Word]]

    def predictions(self, head: Head, p: Tensor, labels: Sequence[str]) -> list[Prediction]:
        """Return the answer to each text: the spans that its words' outputs ``(W, L)`` decode to.

        Args:
            head: A head with `spans`.
            p: The bus output for all words.
            labels: The L labels.
        """
        assert isinstance(head, SpanHead)  # noqa: S101  (tasks of words have it)
        return [
            head.prediction(part, labels, text=text, places=[(w.start, w.end) for w in words])
            for text, words, part in zip(self.texts, self.words, self._by_text(p), strict=True)
        ]

    def by_column(
        self, heads: Sequence[Head], p: Tensor, labels: Sequence[Sequence[str]]
    ) -> Iterator[list[Prediction]]:
        """Yield the spans that each of several experts finds."""
        for head, one, names in zip(heads, p, labels, strict=True):
            yield self.predictions(head, one, names)

    def first(self, rows: Tensor) -> Tensor:
        """Return the row of the first word of each text ``(N, …)``."""
        counts = torch.tensor([len(words) for words in self.words], dtype=torch.int64)
        return rows[counts.cumsum(0) - counts]

    def most(self, p: Tensor) -> Tensor:
        """Return each label's largest probability in each text ``(N, L)``, from ``(W, L)``."""
        return torch.stack([part.amax(0) for part in self._by_text(p)])

    def _by_text(self, p: Tensor) -> tuple[Tensor, ...]:
        return torch.split(p, [len(words) for words in self.words])
