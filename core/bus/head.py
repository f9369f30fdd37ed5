"""Heads: how a row's logits become an answer, and how answers are trained and evaluated.

The host's own heads are in `tasks` or in a file each. To add one, write a subclass of `Head` and
call `tasks.register_task`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from ...registry.errors import UsageError
from ...registry.package.manifest import ExpertManifest
from ..label_scores import LabelMetrics
from ..label_sets import DECLINED, NONE, Notation
from ..types import FoundSpan, Row
from .experts import Expert


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """One row of a bus's output, or the rows of one text, in readable form.

    Attributes:
        label: The answer in text form.
        probability: Its probability, 0–1.
        value: The number, for regression.
        labels: The labels in an answer that has any number of them, sorted.
        scores: The probability of each label, where an answer has any number of them.
        spans: The parts of the text that the answer labels, where it labels parts of it.
    """

    label: str
    probability: float | None = None
    value: float | None = None
    labels: tuple[str, ...] | None = None
    scores: Mapping[str, float] | None = None
    spans: tuple[FoundSpan, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """An expert's logits on rows that it was not trained on.

    Attributes:
        logits: Logits ``(N, L)``.
        targets: The targets of the N rows.
        sizes: The number of rows of each text.
    """

    logits: Tensor
    targets: Tensor
    sizes: tuple[int, ...]


Scorer = Callable[[Sequence[tuple[str, str]]], LabelMetrics]
"""Pairs (label of a text, its answer) → their scores."""


@dataclass(frozen=True, kw_only=True)
class TargetScaler:
    """The units an expert is trained in, so that step sizes suit targets of any magnitude.

    Attributes:
        scale: Targets become (y − shift) / scale.
        shift: See `scale`; 0 where the expert has no bias to absorb it.
        hidden: Hidden states become h / hidden, so that one unit of them moves the target by one.
    """

    scale: float = 1.0
    shift: float = 0.0
    hidden: float = 1.0

    def of(self, targets: Tensor) -> Tensor:
        """Return targets ``(N,)`` in these units; class indices are returned unchanged."""
        return (targets - self.shift) / self.scale if targets.is_floating_point() else targets


@dataclass(frozen=True, kw_only=True)
class Head(ABC):
    """How a row's logits become an answer, and how answers are trained and evaluated.

    Attributes:
        name: Its name in `HEADS`.
        noun: What its answers are called in messages.
        domain: The default description of the domain of an expert with n labels.
        cards: The kinds of routing card its experts may ship.
        card: The kind by default, for an expert on the bus with labels of its own.
        fields: The attributes of `Prediction` besides the answer itself that it fills.
        probabilities: Whether outputs are probabilities. If so, logits have a temperature,
            `DECLINED` is an output of its own, and a `Prediction` has a ``probability``, not a
            ``value``.
        distribution: Whether the probabilities of a row sum to 1, as its answers are mutually
            exclusive.
        several: Whether an answer is a set of labels (`core.label_sets`).
        notation: How answers are written in files of rows; None for one label, or a number.
        resolution: For regression: the smallest difference that matters.
    """

    name: ClassVar[str]
    noun: ClassVar[str] = "labels"
    domain: ClassVar[str] = "texts with one of {n} labels"
    cards: ClassVar[tuple[str, ...]] = ("texts", "vectors", "statistics", "none")
    card: ClassVar[str] = "texts"
    fields: ClassVar[tuple[str, ...]] = ()
    probabilities: ClassVar[bool] = True
    distribution: ClassVar[bool] = True
    several: ClassVar[bool] = False
    notation: ClassVar[Notation | None] = None
    resolution: float = 1.0

    @abstractmethod
    def output(self, logits: Tensor, *, temperature: float | Tensor = 1.0) -> Tensor:
        """Return the output of the bus for logits ``(B, C)``, in the same shape."""

    @abstractmethod
    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss of logits ``(B, C)`` against the targets of B rows."""

    @abstractmethod
    def targets(self, answers: Sequence[str], labels: Sequence[str] = ()) -> Tensor:
        """Return targets, N of them, for answers in text form.

        Raises:
            UsageError: If one of them is not a valid answer.
        """

    @abstractmethod
    def answers(self, targets: Tensor, labels: Sequence[str] = ()) -> tuple[str, ...]:
        """Return the answers for N targets, in text form."""

    @abstractmethod
    def read(self, output: Tensor, labels: Sequence[str] = ()) -> list[Prediction]:
        """Return each row of the output ``(N, L)`` in readable form."""

    def right(self, output: Tensor, rows: Sequence[Row], labels: Sequence[str] = ()) -> Tensor:
        """Return for each row whether the output ``(N, L)`` is right, ``(N,)`` of 0.0 and 1.0."""
        given = self.read(output, labels)
        hits = [p.label == r.label for p, r in zip(given, rows, strict=True)]
        return torch.tensor(hits, dtype=torch.float64)

    @property
    def scorer(self) -> Scorer | None:
        """How texts' labels and answers are scored; None if answers are not labels."""
        return None

    def read_columns(
        self, heads: Sequence[Head], p: Tensor, labels: Sequence[Sequence[str]]
    ) -> Iterator[list[Prediction]]:
        """Yield the readable rows of several experts' own outputs.

        Args:
            heads: The head of each, n of them, with what its author fitted.
            p: The outputs, ``(n, B, L_i)``.
            labels: The L_i labels of each.
        """
        for head, one, names in zip(heads, p, labels, strict=True):
            yield head.read(one, names)

    def hits(self, logits: Tensor, targets: Tensor) -> Tensor | None:
        """Return whether rows' targets are their best outputs; None if validated by loss only."""
        return None

    def places(self, answers: Sequence[str], labels: Sequence[str]) -> Tensor | None:
        """Return the index of each answer among the outputs ``(N,)``, −1 for one that has none.

        None if an answer is not one of the outputs.
        """
        return None

    def log_odds(self, p: Tensor) -> Tensor | None:
        """Return log p / (1 − p) of each row's answer ``(N,)``, float64.

        None where answers do not exclude one another.
        """
        return None

    def unclaimed(self, p: Tensor, to_backbone: Tensor) -> Tensor:
        """Return which rows no expert answers, where the backbone has no answers, ``(N,)``.

        Args:
            p: The bus output ``(N, L)``.
            to_backbone: Which rows have their largest weight on the backbone column.
        """
        return to_backbone

    def declined(self, p: Tensor, labels: Sequence[str], *, shared: bool) -> Prediction:
        """Return the answer to a declined text.

        Args:
            p: The text's bus output ``(L,)``.
            labels: The L labels.
            shared: Whether the backbone has labels of its own, so that `DECLINED` is not an output.
        """
        return Prediction(label=NONE)

    def calibrate(
        self,
        expert: Expert,
        read: Callable[[Sequence[Row]], HeldOut],
        *,
        fit: Sequence[Row],
        gate: Sequence[Row],
    ) -> None:
        """Fit what an author ships besides weights, such as a temperature, to held-out rows.

        Args:
            expert: The expert, with labels of its own; receives what is fitted.
            read: Rows → the expert's logits on them.
            fit: The fit rows of its card.
            gate: The gate rows of its card.
        """
        return  # a number has nothing to calibrate

    def nats(self, output: Tensor, rows: Sequence[Row]) -> Tensor | None:
        """Return −log p of each row's answer ``(N,)``; None if bits are not reported."""
        return None

    def error(self, output: Tensor, rows: Sequence[Row]) -> Tensor | None:
        """Return |ŷ − y| ``(N,)`` for regression; its mean is the MAE."""
        return None

    def mixed(self, p: Tensor, support: Tensor) -> Tensor:
        """Return the mean over the columns that support a label, ``(B, L)``.

        Args:
            p: Σ_i α_i p_i, where p_i is 0 for labels that expert i does not have, ``(B, L)``.
            support: Σ α_i over the columns that support each label, ``(B, L)``.
        """
        # Where answers exclude each other, an expert without a label gives it 0: p is the mean.
        return p

    def silence(self, logits: Tensor) -> Tensor:
        """Return the off-domain loss on logits ``(M, L)`` of an expert's own labels."""
        return logits.square().sum(-1).mean()

    @classmethod
    def implied_by(cls, expert: ExpertManifest) -> bool:  # noqa: ARG003  (none by default)
        """Return whether an expert's manifest alone shows that it has this head."""
        return False

    def fitted_by(self, experts: Iterable[Expert]) -> Self:
        """Return the head with what the experts' authors fitted, if they fitted anything."""
        return self

    def units(self, targets: Tensor, *, classifier: Tensor | None) -> TargetScaler:
        """Return the units for N targets; no W_c where the expert has an output of its own."""
        return TargetScaler()

    def parts(self, answer: str) -> tuple[str, ...]:
        """Return the labels that an answer counts for."""
        return (answer,)

    def groups(self, answers: Sequence[str]) -> tuple[str, ...]:
        """Return the class that each answer counts under in a domain's statistics."""
        return tuple(answers)

    def labels_in(self, answers: Sequence[str]) -> set[str]:
        """Return the labels that occur in answers.

        Raises:
            UsageError: If one of them is not a valid answer.
        """
        return set(answers)

    def expected(self, answer: str) -> str | None:
        """Return what a training row should have as its answer instead; None if it is valid."""
        return None

    def canonical(self, answer: str, text: str) -> str | None:
        """Return the canonical spelling of an answer to a text; None if it is not valid."""
        return answer if self.expected(answer) is None else None

    def label_space(self, shared: Sequence[str], own_labels: Iterable[str]) -> tuple[str, ...]:
        """Return the outputs of a bus: the backbone's labels, then the experts', without repeats.

        If the backbone has no labels, the first output is `DECLINED`, the backbone column's answer.
        """
        # Probabilities sum to 1, so somebody has to take the backbone column's share; a number has
        # none.
        nobody = (DECLINED,) if self.probabilities else ()
        return tuple(dict.fromkeys((*(shared or nobody), *own_labels)))


def require_labels(named: set[str], labels: Iterable[str]) -> None:
    """Check that all named labels can be predicted.

    Raises:
        UsageError: If one cannot.
    """
    strange = sorted(named - set(labels))
    if strange:
        raise UsageError(
            "not every label of the data can be answered",
            expected="labels of the backbone's classifier",
            found=", ".join(strange[:5]),
            hint="Let the expert write labels of its own (--writes labels).",
        )
