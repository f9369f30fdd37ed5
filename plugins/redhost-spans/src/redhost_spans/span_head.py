"""Spans: a set of labels for each word of a text, decoded into runs of words.

    p(y|w, x) = Σ_i α_i(x) p_i(y|w)      p_i = 0 for labels that expert i does not have
    e_w       = logit p(y|w, x) − logit b_y
    spans     = for each y, the runs of words with the largest Σ over their words of e_w,
                less c_y for each run

A word has a probability for each label, as a whole text has for `SigmoidHead`, so spans of two
labels may overlap. The weights α are those of the whole text. The text's domain thus determines
which labels are searched for: no expert is trained to find nothing in texts of other domains. Teams
that annotate the same texts for different labels use separate questions.

The cost c of a span binds words to their neighbours: a word with weak evidence between two with
strong evidence joins their span, while weak evidence alone yields no span. c is the difference of
two states' transitions in a Markov chain, decoded by Viterbi's algorithm (1967). With c = 0 spans
are the longest runs of words with p ≥ b. Two adjacent spans of one label are read as one, as no
label marks where the second begins.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from statistics import fmean
from typing import Self

import torch
from torch import Tensor

from redhost.core.bus.experts import Expert
from redhost.core.bus.head import Prediction
from redhost.core.bus.label_set_head import EVEN, GRID, SigmoidHead, best_tried
from redhost.core.label_sets import NONE, split_labels
from redhost.core.types import FoundSpan
from redhost.registry.package.manifest import ExpertManifest, SpanRule
from redhost_spans.label_spans import (
    SPANS,
    Span,
    join_spans,
    label_of,
    read_spans,
    split_spans,
)

COSTS = (0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0)
"""Candidate costs of a span, in nats, small ones first."""

SURE = 1e-6
"""Probabilities are clamped to [SURE, 1 − SURE], so that logits are finite."""


@dataclass(frozen=True, kw_only=True)
class SpanHead(SigmoidHead):
    """The head that answers the spans of a text; a row of the bus is a word.

    Attributes:
        rules: b and c of each label; if absent, its threshold and 0.
    """

    name, noun, domain = "spans", "spans", "texts with spans of {n} labels"
    cards = ("texts", "none")
    fields = ("labels", "scores", "spans")
    notation = SPANS
    rules: Mapping[str, SpanRule] = field(default_factory=dict)

    @classmethod
    def implied_by(cls, expert: ExpertManifest) -> bool:
        """Return whether an expert has rules of spans, or thresholds and labels of spans.

        Sets of labels are parsed like spans, unless a label is no span's.
        """
        placed = any(label_of(y) != y for y in expert.labels)
        return bool(expert.thresholds and (expert.span_rules or not placed))

    def fitted_by(self, experts: Iterable[Expert]) -> Self:
        """Return the head with each label's threshold and rule averaged over its experts."""
        experts = list(experts)
        found: dict[str, list[SpanRule]] = {}
        for expert in experts:
            for label, rule in zip(expert.labels, expert.rules, strict=False):
                found.setdefault(label, []).append(rule)
        means = {
            label: SpanRule(
                threshold=fmean(r.threshold for r in some), cost=fmean(r.cost for r in some)
            )
            for label, some in found.items()
        }
        return replace(super().fitted_by(experts), rules=means)

    def fit(self, expert: Expert, p: Tensor, targets: Tensor, *, sizes: Sequence[int]) -> None:
        """Fit the thresholds on words, and the rules on spans."""
        super().fit(expert, p, targets, sizes=sizes)
        expert.rules = self.fit_rules(p, targets, sizes)

    def fit_rules(self, p: Tensor, targets: Tensor, sizes: Sequence[int]) -> tuple[SpanRule, ...]:
        """Return for each label the rule with the largest F1 of exact spans, smoothed.

        The smoothing is that of `fit_thresholds`.

        Args:
            p: The bus output for words of held-out texts, ``(W, L)``.
            targets: The targets of these words.
            sizes: The number of words of each text.
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
        """Return the label of a span in text form."""
        return label_of(part)

    def prediction(
        self, p: Tensor, labels: Sequence[str], *, text: str, places: Sequence[tuple[int, int]]
    ) -> Prediction:
        """Return the spans of a text as its answer; arguments as for `spans`.

        Its probability is the least of the spans', or that of no span at all.
        """
        found, most = self.spans(p, labels, text=text, places=places), p.amax(0)
        return Prediction(
            label=join_spans(Span(s.start, s.end, s.label) for s in found),
            probability=min((s.probability for s in found), default=float((1 - most).prod())),
            labels=tuple(sorted({s.label for s in found})),
            scores=dict(zip(labels, most.tolist(), strict=True)),
            spans=tuple(found),
        )

    def mixed(self, p: Tensor, support: Tensor) -> Tensor:
        """Return Σ_i α_i p_i ``(B, L)`` unchanged: an expert without a label predicts 0 for it."""
        return p

    def groups(self, answers: Sequence[str]) -> tuple[str, ...]:
        """Return the label of each text's first span, so that a text counts once in the sums."""
        return tuple(label_of((*split_labels(answer), NONE)[0]) for answer in answers)

    def declined(self, p: Tensor, labels: Sequence[str], *, shared: bool) -> Prediction:
        """Return no spans."""
        return replace(super().declined(p, labels, shared=shared), spans=())

    def expected(self, answer: str) -> str | None:
        """Return that spans are expected, if the answer is not a list of spans."""
        found = split_spans(answer)
        return None if len(found) == len(split_labels(answer)) else "spans, such as 0:5:PER"

    def canonical(self, answer: str, text: str) -> str | None:
        """Return spans of a text in canonical order, from text form or a JSON list."""
        return read_spans(answer, text)

    def spans(
        self, p: Tensor, labels: Sequence[str], *, text: str, places: Sequence[tuple[int, int]]
    ) -> list[FoundSpan]:
        """Return the spans of a text, sorted.

        Args:
            p: The bus output for each of its words ``(W, L)``.
            labels: The L labels.
            text: The text.
            places: Start and end character of each word.
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
    """Return first and last word of the runs with the largest Σ (score − least), less their costs.

    Args:
        score: The score of each word.
        least: The score above which a word is better inside a run than outside.
        cost: The cost of a run, 0 or more.
    """
    if max(score) < least:  # most texts have no span of most labels
        return []
    # Viterbi over two states: the best sum that ends inside a run, and outside of any.
    inside, outside, steps = -math.inf, 0.0, list[tuple[bool, bool]]()
    for x in score:
        # Ties prefer the longer run, so that c = 0 gives the longest runs with p ≥ b.
        goes_on, ends = inside >= outside - cost, inside >= outside
        steps.append((goes_on, ends))
        entered = inside if goes_on else outside - cost
        inside, outside = entered + x - least, max(inside, outside)
    runs, last = list[tuple[int, int]](), None
    is_inside = inside >= outside
    for word in range(len(score) - 1, -1, -1):  # back along the best path
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
    """Return indices of the words that gates use ``(J,)``: those with a label, and as many others.

    Most words have no label. Over all words, accuracy could still be 99 % after an expert lost half
    of its spans.

    Args:
        labels: The set of labels of each word, with the words of all texts concatenated.
    """
    found = torch.tensor([label != NONE for label in labels], dtype=torch.bool)
    own, others = found.nonzero()[:, 0], (~found).nonzero()[:, 0]
    step = max(1, len(others) // max(1, len(own)))  # evenly spread: no chance, no seed
    return torch.cat([own, others[::step]]).sort().values
