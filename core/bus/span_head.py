"""Spans: any number of labels for each word of a text, and runs of words that have one.

    p(y|w, x) = Σ_i α_i(x) p_i(y|w)      p_i = 0 for labels that expert i does not have
    e_w       = logit p(y|w, x) − logit b_y
    spans     = for each y, the runs of words with the largest Σ over their words of e_w − c_y

A word has a probability for each label, as a whole text has by `label_set_head`, so spans of two
labels may overlap. The weights are the text's: whose text it is decides whose labels are looked for
in it, as nobody taught an expert to find nothing in others' texts. Teams that look for different
things in the same texts answer questions of their own.

The cost c of a span binds words to their neighbours: a word that says little between two that say
much is in their span, and one that says a little alone is none. It is the difference of two states'
transitions in a Markov chain, found by Viterbi's algorithm (1967); with c = 0 spans are the longest
runs of words with p ≥ b. Two spans of one label that touch are read as one: no label says where the
second begins.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from statistics import fmean
from typing import Self

import msgspec
import torch
from torch import Tensor

from ...registry.package.manifest import SpanRule
from ..label_sets import NONE, split_labels
from ..label_spans import label_of, read_spans, split_spans
from .experts import Expert
from .label_set_head import EVEN, GRID, SigmoidHead, best_tried


class FoundSpan(msgspec.Struct, frozen=True, kw_only=True):
    """A span that is answered.

    Attributes:
        start: Its first character.
        end: The character after its last.
        label: What it is.
        text: What stands there.
        probability: The mean over its words, 0–1.
    """

    start: int
    end: int
    label: str
    text: str
    probability: float


COSTS = (0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0)
"""What a span may cost, in nats, small ones first."""

SURE = 1e-6
"""No word is more or less probable than by this: a logit is finite."""


@dataclass(frozen=True, kw_only=True)
class SpanHead(SigmoidHead):
    """The spans of a text; a row of the bus is one of its words.

    Attributes:
        rules: b and c of each label; where absent, its threshold and 0.
    """

    name, noun, domain = "spans", "spans", "texts with spans of {n} labels"
    cards = ("texts", "none")
    rules: Mapping[str, SpanRule] = field(default_factory=dict)

    def fitted_by(self, experts: Iterable[Expert]) -> Self:
        """Return the head with the mean threshold and rule of each label over its experts."""
        experts = list(experts)
        found: dict[str, list[SpanRule]] = {}
        for expert in experts:
            for label, rule in zip(expert.labels, expert.span_rules, strict=False):
                found.setdefault(label, []).append(rule)
        means = {
            label: SpanRule(
                threshold=fmean(r.threshold for r in some), cost=fmean(r.cost for r in some)
            )
            for label, some in found.items()
        }
        return replace(super().fitted_by(experts), rules=means)

    def fit(self, expert: Expert, p: Tensor, targets: Tensor, *, sizes: Sequence[int]) -> None:
        """Fit the thresholds, by words, and the rules, by spans."""
        super().fit(expert, p, targets, sizes=sizes)
        expert.span_rules = self.fit_rules(p, targets, sizes)

    def fit_rules(self, p: Tensor, targets: Tensor, sizes: Sequence[int]) -> tuple[SpanRule, ...]:
        """Return the rule for each label with the largest F1 of exact spans, smoothed likewise.

        Args:
            p: What is put out for words of texts that were not trained on, ``(W, L)``.
            targets: Theirs.
            sizes: How many of the words each text has.
        """
        tried = [SpanRule(threshold=t, cost=c) for c in COSTS for t in GRID]
        texts = [slice(a, b) for a, b in pairwise(accumulate(sizes, initial=0))]
        has, hits, given = [], [], []
        for own, logits in zip(targets.T.tolist(), _logit(p).T.tolist(), strict=True):
            marked = {(cut.start, *run) for cut in texts for run in best_runs(own[cut], 1, 0.0)}
            found = [
                {
                    (cut.start, *run)
                    for cut in texts
                    for run in best_runs(logits[cut], _logit_of(rule.threshold), rule.cost)
                }
                for rule in tried
            ]
            has.append(len(marked))
            hits.append([len(marked & some) for some in found])
            given.append([len(some) for some in found])
        counts = [torch.tensor(c, dtype=torch.float64) for c in (has, hits, given)]
        best = best_tried(counts[0], counts[1].T, counts[2].T)
        return tuple(tried[n] for n in best)

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

    def canonical(self, answer: str, text: str) -> str | None:
        """Return spans of a text, written so or as a list in JSON, in their order."""
        return read_spans(answer, text)

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
        evidence = _logit(p).T.tolist()  # (L, W)
        found = [
            FoundSpan(
                start=(start := places[first][0]),
                end=(end := places[last][1]),
                label=label,
                text=text[start:end],
                probability=float(p[first : last + 1, n].mean()),
            )
            for n, label in enumerate(labels)
            for first, last in best_runs(evidence[n], *self._rule(label))
        ]
        return sorted(found, key=lambda s: (s.start, s.end, s.label))

    def _rule(self, label: str) -> tuple[float, float]:
        """Return logit b and c of a label."""
        rule = self.rules.get(label)
        if rule is None:
            return _logit_of(self.thresholds.get(label, EVEN)), 0.0
        return _logit_of(rule.threshold), rule.cost


def best_runs(score: Sequence[float], least: float, cost: float) -> list[tuple[int, int]]:
    """Return the runs with the largest Σ (score − least − cost of each): their first and last.

    Args:
        score: Of each word.
        least: What a word has to have to be better in a run than out of one.
        cost: Of a run, 0 or more.
    """
    if max(score) < least:
        return []
    inside, outside, steps = -math.inf, 0.0, list[tuple[bool, bool]]()
    for x in score:
        goes_on, ends = inside >= outside - cost, inside >= outside
        steps.append((goes_on, ends))
        entered = inside if goes_on else outside - cost
        inside, outside = entered + x - least, max(inside, outside)
    runs, last = list[tuple[int, int]](), None
    is_inside = inside >= outside
    for word in range(len(score) - 1, -1, -1):
        goes_on, ends = steps[word]
        if not is_inside:
            is_inside = ends
            continue
        last = word if last is None else last
        if not goes_on:
            runs.append((word, last))
            is_inside, last = False, None
    return runs[::-1]


def _logit(p: Tensor) -> Tensor:
    return torch.logit(p.double(), eps=SURE)


def _logit_of(p: float) -> float:
    return math.log(p) - math.log1p(-p)


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
