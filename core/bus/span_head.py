"""Spans: any number of labels for each word of a text, and runs of words that have one.

    p(y|w, x) = Σ_i α_i(x) p_i(y|w)      p_i = 0 for labels that expert i does not have
    spans     = for each y, the longest runs of words with p(y|w, x) ≥ t_y

A word has a probability for each label, as a whole text has by `label_set_head`, so spans of two
labels may overlap. The weights are the text's: whose text it is decides whose labels are looked for
in it, as nobody taught an expert to find nothing in others' texts. Teams that look for different
things in the same texts answer questions of their own. Two spans of one label that touch are read
as one: no label says where the second begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import msgspec
import torch
from torch import Tensor

from ..label_sets import NONE, split_labels
from ..label_spans import label_of, split_spans
from .label_set_head import EVEN, SigmoidHead


class FoundSpan(msgspec.Struct, frozen=True, kw_only=True):
    """A span that is answered.

    Attributes:
        start: Its first character.
        end: The character after its last.
        label: What it is.
        text: What stands there.
        probability: Of its least sure word, 0–1.
    """

    start: int
    end: int
    label: str
    text: str
    probability: float


@dataclass(frozen=True, kw_only=True)
class SpanHead(SigmoidHead):
    """The spans of a text; a row of the bus is one of its words."""

    name, noun, domain = "spans", "spans", "texts with spans of {n} labels"
    cards = ("texts", "none")

    def labels_in(self, answers: Sequence[str]) -> set[str]:
        """Return the labels of all the spans."""
        return {label_of(y) for answer in answers for y in split_labels(answer)}

    def label_of(self, part: str) -> str:
        """Return the label of a span that is written as text."""
        return label_of(part)

    def mixed(self, p: Tensor, known: Tensor) -> Tensor:  # noqa: ARG002
        """Return Σ α_i p_i ``(B, L)`` as it is: who does not have a label does not find it."""
        return p

    def groups(self, answers: Sequence[str]) -> tuple[str, ...]:
        """Return the label of each text's first span: sums have every text once."""
        return tuple(label_of((*split_labels(answer), NONE)[0]) for answer in answers)

    def expected(self, answer: str) -> str | None:
        """Return that spans are expected, where there are none."""
        found = split_spans(answer)
        return None if len(found) == len(split_labels(answer)) else "spans, such as 0:5:PER"

    def spans(
        self, p: Tensor, labels: Sequence[str], *, text: str, places: Sequence[tuple[int, int]]
    ) -> list[FoundSpan]:
        """Return the spans of a text, sorted.

        Args:
            p: What is put out for each of its words ``(W, L)``.
            labels: The L labels.
            text: The text.
            places: Where each word begins and ends.
        """
        limits = p.new_tensor([self.thresholds.get(y, EVEN) for y in labels])
        chosen = (p >= limits).T.tolist()  # (L, W)
        found = [
            FoundSpan(
                start=(start := places[run[0]][0]),
                end=(end := places[run[-1]][1]),
                label=label,
                text=text[start:end],
                probability=float(p[run, n].min()),
            )
            for n, label in enumerate(labels)
            for run in _runs(chosen[n])
        ]
        return sorted(found, key=lambda s: (s.start, s.end, s.label))


def _runs(chosen: Sequence[bool]) -> Iterator[list[int]]:
    """Yield the indices of each run of true values."""
    for is_chosen, run in groupby(range(len(chosen)), key=chosen.__getitem__):
        if is_chosen:
            yield list(run)


def gate_words(labels: Sequence[str]) -> Tensor:
    """Return which words a composition is judged by ``(J,)``: those with a label, and as many more.

    Most words have none, so that an expert could lose half of its spans and still have 99 % of all
    words right.

    Args:
        labels: The set of labels of each word, some text's words after others'.
    """
    found = torch.tensor([label != NONE for label in labels], dtype=torch.bool)
    own, others = found.nonzero()[:, 0], (~found).nonzero()[:, 0]
    step = max(1, len(others) // max(1, len(own)))
    return torch.cat([own, others[::step]]).sort().values
