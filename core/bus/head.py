"""What turns a row's logits into an answer, and says how answers are learnt and judged.

A head of the host's own stands in `tasks` or in a file of its own; another one is a subclass of
`Head` and a call of `tasks.register_task`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from ...registry.errors import UsageError
from ..label_sets import NONE
from ..types import Row
from .experts import Expert


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What one row of a bus's output is for people."""

    label: str
    probability: float | None = None
    value: float | None = None


@dataclass(frozen=True, kw_only=True)
class TargetScaler:
    """The units an expert is trained in, so that steps fit numbers of any size.

    Attributes:
        scale: Targets are (y − shift) / scale.
        shift: Likewise; 0 where there is no bias to take it.
        hidden: Hidden states are h / hidden, so that one unit of them moves the target by one.
    """

    scale: float = 1.0
    shift: float = 0.0
    hidden: float = 1.0

    def of(self, targets: Tensor) -> Tensor:
        """Return targets ``(N,)`` in these units; class indices, which have none, as they are."""
        return (targets - self.shift) / self.scale if targets.is_floating_point() else targets


@dataclass(frozen=True, kw_only=True)
class Head(ABC):
    """How a row's logits become an answer, and how answers are learnt and judged.

    Attributes:
        name: Its name in `HEADS`.
        noun: What it answers, for messages.
        domain: What inputs an expert with n labels is for, where its author says nothing.
        cards: The kinds of routing card its experts may ship.
        probabilities: Whether outputs are probabilities: then logits have a temperature, declining
            is an output of its own (`NONE`), and a `Prediction` has a ``probability``, not a
            ``value``.
        distribution: Whether the probabilities of a row sum to 1, as its answers exclude each
            other.
        several: Whether an answer is a set of labels (`core.label_sets`).
        vocabulary: Whether answers are the trunk's tokens, so that its language-model head is the
            classifier.
        resolution: Where numbers are answered: the smallest difference that matters.
    """

    name: ClassVar[str]
    noun: ClassVar[str] = "labels"
    domain: ClassVar[str] = "texts with one of {n} labels"
    cards: ClassVar[tuple[str, ...]] = ("texts", "vectors", "statistics", "none")
    probabilities: ClassVar[bool] = True
    distribution: ClassVar[bool] = True
    several: ClassVar[bool] = False
    vocabulary: ClassVar[bool] = False
    resolution: float = 1.0

    @abstractmethod
    def output(self, logits: Tensor, *, temperature: float | Tensor = 1.0) -> Tensor:
        """Return what the bus puts out for logits ``(B, C)``, ``(B, C)``."""

    @abstractmethod
    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss of logits ``(B, C)`` against the targets of B rows."""

    @abstractmethod
    def targets(self, answers: Sequence[str], labels: Sequence[str] = ()) -> Tensor:
        """Return targets, N of them, for answers as people write them.

        Raises:
            UsageError: If one of them is no answer.
        """

    @abstractmethod
    def answers(self, targets: Tensor, labels: Sequence[str] = ()) -> tuple[str, ...]:
        """Return the answers that N targets stand for, as people write them."""

    @abstractmethod
    def read(self, output: Tensor, labels: Sequence[str] = ()) -> list[Prediction]:
        """Return what each row of the output ``(N, L)`` is for people."""

    def right(self, output: Tensor, rows: Sequence[Row], labels: Sequence[str] = ()) -> Tensor:
        """Return for each row whether the output ``(N, L)`` is right, ``(N,)`` of 0.0 and 1.0."""
        given = self.read(output, labels)
        hits = [p.label == r.label for p, r in zip(given, rows, strict=True)]
        return torch.tensor(hits, dtype=torch.float64)

    def nats(self, output: Tensor, rows: Sequence[Row]) -> Tensor | None:
        """Return −log p of each row's answer ``(N,)``, where that is what bits are counted of."""
        return None

    def error(self, output: Tensor, rows: Sequence[Row]) -> Tensor | None:
        """Return |ŷ − y| ``(N,)`` where numbers are answered; its mean is the MAE."""
        return None

    def mixed(self, p: Tensor, known: Tensor) -> Tensor:
        """Return the mean over those columns that know about a label, ``(B, L)``.

        Args:
            p: Σ_i α_i p_i, where p_i is 0 for labels that expert i does not have, ``(B, L)``.
            known: Σ α_i over the columns that know about each label, ``(B, L)``.
        """
        return p

    def silence(self, logits: Tensor) -> Tensor:
        """Return what logits ``(M, L)`` of labels of one's own cost on texts to leave alone."""
        return logits.square().sum(-1).mean()

    def fitted_by(self, experts: Iterable[Expert]) -> Self:
        """Return the head that answers as experts' authors fitted it to, where they fitted any."""
        return self

    def fit(self, expert: Expert, p: Tensor, targets: Tensor, *, sizes: Sequence[int]) -> None:
        """Fit what an author ships beside weights and temperature of how labels are read.

        Args:
            expert: Gets it.
            p: What is put out for rows that were not trained on, ``(N, L)``.
            targets: Theirs.
            sizes: How many of the rows each text has.
        """
        return  # most ship nothing else

    def units(self, targets: Tensor, *, classifier: Tensor | None) -> TargetScaler:
        """Return the units for N targets; without W_c for an output of one's own."""
        return TargetScaler()

    def label_of(self, part: str) -> str:
        """Return the label of one part of an answer that has several."""
        return part

    def groups(self, answers: Sequence[str]) -> tuple[str, ...]:
        """Return the class each answer counts for in a domain's statistics."""
        return tuple(answers)

    def labels_in(self, answers: Sequence[str]) -> set[str]:
        """Return the labels that answers name.

        Raises:
            UsageError: If one of them is no answer.
        """
        return set(answers)

    def expected(self, answer: str) -> str | None:
        """Return what an author's row should have had in place of this answer; None if it fits."""
        return None

    def canonical(self, answer: str, text: str) -> str | None:
        """Return an answer to a text as people write it in its one spelling; None if it is none."""
        # A text may rightly be declined, though nobody learns that from a label.
        return answer if answer == NONE or self.expected(answer) is None else None

    def label_space(self, shared: Sequence[str], own: Iterable[str]) -> tuple[str, ...]:
        """Return the outputs of a bus: the backbone's labels, then what experts bring, once each.

        Without labels of the backbone the space starts with `NONE`, the backbone column's answer.
        """
        nobody = (NONE,) if self.probabilities else ()
        return tuple(dict.fromkeys((*(shared or nobody), *own)))


def require_answers(head: Head, rows: Iterable[Row]) -> None:
    """Check that rows can be learnt from.

    Raises:
        UsageError: If the label of one is no answer.
    """
    for label in sorted({r.label for r in rows}):
        if expected := head.expected(label):
            raise UsageError(
                "the rows cannot be learnt from", expected=expected, found=repr(label)[:40]
            )


def require_labels(named: set[str], labels: Iterable[str]) -> None:
    """Check that labels can be answered.

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
