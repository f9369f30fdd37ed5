"""Multi-label classification: a probability and a threshold for each label.

    p(y|x) = sigmoid(logit_y / T)                     of one expert, for its own labels
    p(y|x) = Σ_i α_i p_i(y|x) / Σ_i α_i               over the columns i that support y
    answer = { y : p(y|x) ≥ t_y }

Labels are not mutually exclusive. That a text is in an expert's domain is no evidence about a label
that this expert does not have, since its author never annotated for it. Such experts are therefore
left out of the mean, which is then p(y | x, the text is of a domain where y is annotated). The
backbone column supports every label: it stands for the background card's texts, which have none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import fmean
from typing import ClassVar, Self

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from ..label_scores import measure_label_sets
from ..label_sets import LABEL_SETS, NONE, join_labels, read_label_set, split_labels
from ..types import Row
from .experts import Expert
from .head import Head, HeldOut, Prediction, Scorer, require_labels
from .temperature import fit_temperature

FEW = 20
"""Below this number of texts nothing is fitted to them."""

EVEN = 0.5
"""The threshold of a label without a fitted one."""

UNKNOWN = 1e-30
"""Below this total weight no column supports a label, and its probability is 0."""

GRID = tuple(sorted((n / 20 for n in range(1, 20)), key=lambda t: abs(t - EVEN)))
"""Candidate thresholds, those near `EVEN` first."""

SHRINKAGE = 20.0
"""Pseudo-count when a threshold is fitted: the rows with a label that all labels together stand
for. The F1 of a few rows alone is too noisy."""


@dataclass(frozen=True, kw_only=True)
class SigmoidHead(Head):
    """The head whose answer is a set of labels.

    Attributes:
        thresholds: The probability from which on a label is in the answer; `EVEN` if absent.
    """

    name, noun, domain = "sigmoid", "sets of labels", "texts with some of {n} labels"
    cards: ClassVar[tuple[str, ...]] = ("texts", "vectors", "none")  # sums need one label a row
    fields: ClassVar[tuple[str, ...]] = ("labels", "scores")
    distribution, several = False, True
    notation = LABEL_SETS
    thresholds: Mapping[str, float] = field(default_factory=dict)

    def output(self, logits: Tensor, *, temperature: float | Tensor = 1.0) -> Tensor:
        """Return sigmoid(logits / T) ``(B, C)``."""
        return torch.sigmoid(logits / temperature)

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the mean over rows of Σ_y binary cross-entropy, ``(B, C)``, in nats."""
        loss = binary_cross_entropy_with_logits(logits, targets.to(logits.dtype), reduction="none")
        return loss.sum(-1).mean()

    def silence(self, logits: Tensor) -> Tensor:
        """Return the loss of predicting labels for texts that have none, logits ``(M, L)``."""
        return self.loss(logits, torch.zeros_like(logits))

    def targets(self, answers: Sequence[str], labels: Sequence[str] = ()) -> Tensor:
        """Return which labels each row has, ``(N, L)`` of 0 and 1.

        Raises:
            UsageError: If an answer contains one that is not among the labels.
        """
        require_labels(self.labels_in(answers), labels)
        rows = [{*split_labels(answer)} for answer in answers]
        indicators = [[int(y in row) for y in labels] for row in rows]
        return torch.tensor(indicators, dtype=torch.int64).reshape(len(rows), len(labels))

    def answers(self, targets: Tensor, labels: Sequence[str] = ()) -> tuple[str, ...]:
        """Return the sets that rows ``(N, L)`` of 0 and 1 encode."""
        return tuple(
            join_labels(y for y, holds in zip(labels, row, strict=True) if holds)
            for row in targets.tolist()
        )

    def read(self, output: Tensor, labels: Sequence[str] = ()) -> list[Prediction]:
        """Return each row's set, and its probability as if labels were independent given x."""
        limits = output.new_tensor([self.thresholds.get(y, EVEN) for y in labels])
        chosen = output >= limits
        sure = torch.where(chosen, output, 1 - output).prod(dim=-1)
        sets = zip(self.answers(chosen, labels), sure.tolist(), output.tolist(), strict=True)
        return [
            Prediction(
                label=label,
                probability=p,
                labels=self.parts(label),
                scores=dict(zip(labels, scores, strict=True)),
            )
            for label, p, scores in sets
        ]

    def declined(self, p: Tensor, labels: Sequence[str], *, shared: bool) -> Prediction:
        """Return the empty set, with the probability that no label holds."""
        scores = dict(zip(labels, p.tolist(), strict=True))
        return Prediction(label=NONE, probability=float((1 - p).prod()), labels=(), scores=scores)

    @property
    def scorer(self) -> Scorer | None:
        """F1 by label, and over all labels."""
        return partial(measure_label_sets, label_of=self.label_of)

    def label_of(self, part: str) -> str:
        """Return the label of one element of an answer."""
        return part

    def parts(self, answer: str) -> tuple[str, ...]:
        """Return the labels of a set, sorted."""
        return tuple(sorted(self.labels_in([answer])))

    def right(self, output: Tensor, rows: Sequence[Row], labels: Sequence[str] = ()) -> Tensor:
        """Return whether the predicted set is exactly the row's, ``(N,)``."""
        given = self.read(output, labels)
        hits = [
            {*split_labels(p.label)} == {*split_labels(r.label)}
            for p, r in zip(given, rows, strict=True)
        ]
        return torch.tensor(hits, dtype=torch.float64)

    def groups(self, answers: Sequence[str]) -> tuple[str, ...]:
        """Return the first label of each set, so that a row counts once in the sums."""
        return tuple((*split_labels(answer), NONE)[0] for answer in answers)

    def labels_in(self, answers: Sequence[str]) -> set[str]:
        """Return the union of the sets."""
        return {y for answer in answers for y in split_labels(answer)}

    def expected(self, answer: str) -> str | None:
        """Return that labels separated by ``|`` are expected, where the answer has none."""
        return None if all(split_labels(answer)) else "labels with '|' between them, or 'none'"

    def canonical(self, answer: str, text: str) -> str | None:
        """Return a set of labels in canonical order, from any order."""
        return read_label_set(answer)

    def label_space(self, shared: Sequence[str], own_labels: Iterable[str]) -> tuple[str, ...]:
        """Return all labels once; the empty set needs no output of its own."""
        return tuple(dict.fromkeys((*shared, *own_labels)))

    def mixed(self, p: Tensor, support: Tensor) -> Tensor:
        """Return Σ α_i p_i / Σ α_i over the columns that support a label, ``(B, L)``."""
        # Where no column supports a label both are 0, and so is the quotient.
        return (p / support.clamp_min(UNKNOWN)).clamp(max=1.0)  # rounding may exceed 1

    def fitted_by(self, experts: Iterable[Expert]) -> Self:
        """Return the head with each label's threshold averaged over the experts that have it."""
        thresholds: dict[str, list[float]] = {}
        for expert in experts:
            # The bus answers a label with a mean over its experts, and so its threshold is a mean.
            for label, t in zip(expert.labels, expert.thresholds, strict=False):  # may be empty
                thresholds.setdefault(label, []).append(t)
        return self.with_thresholds({y: fmean(values) for y, values in thresholds.items()})

    def with_thresholds(self, thresholds: Mapping[str, float]) -> Self:
        """Return the head with the thresholds of some labels set."""
        return replace(self, thresholds={**self.thresholds, **thresholds})

    def calibrate(
        self,
        expert: Expert,
        read: Callable[[Sequence[Row]], HeldOut],
        *,
        fit: Sequence[Row],
        gate: Sequence[Row],
    ) -> None:
        """Fit the temperature and the thresholds to the fit rows, if there are enough."""
        expert.thresholds = (EVEN,) * len(expert.labels)
        # So few rows would fit their own noise: ½ is the better threshold.
        if len(fit) < FEW:
            return
        held = read(fit)
        expert.temperature = fit_temperature(held.logits, held.targets, loss=self.loss)
        with torch.inference_mode():
            p = self.output(held.logits, temperature=expert.temperature)
        self.fit(expert, p, held.targets, sizes=held.sizes)

    def fit(self, expert: Expert, p: Tensor, targets: Tensor, *, sizes: Sequence[int]) -> None:
        """Fit the decoding parameters.

        Args:
            expert: The expert, which receives them.
            p: The bus output on held-out rows, ``(N, L)``.
            targets: The targets of these rows.
            sizes: The number of rows of each text.
        """
        expert.thresholds = self.fit_thresholds(p, targets)

    def fit_thresholds(self, p: Tensor, targets: Tensor) -> tuple[float, ...]:
        """Return for each label the threshold with the largest F1, smoothed by all labels' F1.

            F1_y(t) = 2 (tp_y + κ tp) / (n_y + a_y + κ (n + a))      κ n = `SHRINKAGE`

        tp_y, n_y and a_y count the rows that are correctly answered with y, have y, and are
        answered with y. Without an index they count over all labels together.
        """
        right = targets.double()
        # In double: counts above 2²⁴ rows are not exact in float32.
        given = [(p >= t).double() for t in GRID]
        hits = torch.stack([(answered * right).sum(0) for answered in given])
        best = best_tried(right.sum(0), hits, torch.stack([answered.sum(0) for answered in given]))
        return tuple(GRID[n] for n in best)


def best_tried(has: Tensor, hits: Tensor, given: Tensor) -> list[int]:
    """Return for each of L labels the best of G ways to answer by smoothed F1, as above.

    Args:
        has: The number of rows with the label, ``(L,)``.
        hits: How many of these are answered with it ``(G, L)``; the first wins a tie.
        given: The number of rows answered with it, ``(G, L)``.
    """
    share = SHRINKAGE / float(has.sum().clamp_min(1.0))  # κ
    total = has + given
    smooth = hits + share * hits.sum(-1, keepdim=True)
    score = 2 * smooth / (total + share * total.sum(-1, keepdim=True)).clamp_min(1)
    # Lists, since argmax may return any of equal entries, and the first is to win.
    return [column.index(max(column)) for column in score.T.tolist()]
