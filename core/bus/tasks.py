"""Tasks: what a bus answers. A task is a unit × a head.

    manifest's word    unit     head         output for logits, (B, C)      right
    classification     text     softmax      p(y|x) = softmax(logits / T)   the most probable label
    regression         text     number       ŷ(x) = logits, (B, 1)          rounds to the target
    generation         token    vocabulary   p(x_t+1|x_≤t), (N, V)          the next token
    multi-label        text     sigmoid      p(y|x) = sigmoid(logits / T)   exactly the label set
    spans              word     spans        p(y|w) = sigmoid(logits / T)   exactly its label set

The unit defines what a row of the bus is. The head defines how a row's logits become an answer, and
how answers are trained and evaluated. To add a head, write a subclass of `Head` and call
`register_task`.

Regression is a bus with one output, named `VALUE`, and no softmax (seed 000). Experts add residuals
to the backbone's number, or predict numbers of their own, whose mixture is their mean under α.
Generation is a bus whose rows are the tokens of a text and whose answers are token numbers of the
vocabulary (seed 002). Multi-label tasks answer a set of labels (`label_set_head`), spans a set of
labels for each word (`span_head`). The backbone's manifest names the task, and its fingerprint
covers it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum

import torch
from torch import Tensor, nn

from ...registry.errors import UnknownNameError, UsageError
from ...registry.package.forms import DEFAULT_TASK, TASKS, VALUE, TaskSpec
from ...registry.package.manifest import BackboneManifest, ExpertManifest
from ..label_sets import NONE
from ..label_spans import label_of
from ..types import Row
from .head import Head, Prediction, TargetScaler, require_labels
from .label_set_head import SigmoidHead
from .span_head import SpanHead

SMALLEST = 1e-6
"""Relative spread of targets, as a share of the largest, below which they count as equal."""

TINY = 1e-30
"""Probabilities are clamped to this minimum before the logarithm."""


class Unit(Enum):
    """What a row of the bus is: a whole text, a word of a text, or a token to predict."""

    TEXT, WORD, TOKEN = "text", "word", "token"

    @property
    def router(self) -> str:
        """The kind of router used by default for such rows.

        `composition.choose` resolves `auto`; `causal` needs only one product with the
        language-model head for any number of experts.
        """
        return "causal" if self is Unit.TOKEN else "auto"

    @property
    def does(self) -> str:
        """What backbones with this unit do, for messages."""
        return {"text": "answers whole texts", "word": "answers spans"}.get(
            self.value, "generates text"
        )


class SoftmaxHead(Head):
    """One of several labels."""

    name = "softmax"

    def output(self, logits: Tensor, *, temperature: float | Tensor = 1.0) -> Tensor:
        """Return softmax(logits / T) ``(B, C)``."""
        return torch.softmax(logits / temperature, dim=-1)

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy of ``(B, C)`` against ``(B,)``, in nats."""
        return nn.functional.cross_entropy(logits, targets)

    def targets(self, answers: Sequence[str], labels: Sequence[str] = ()) -> Tensor:
        """Return the indices of the labels ``(N,)``.

        Raises:
            UsageError: If an answer is not among the labels.
        """
        require_labels(self.labels_in(answers), labels)
        place = {label: n for n, label in enumerate(labels)}
        return torch.tensor([place[a] for a in answers])

    def answers(self, targets: Tensor, labels: Sequence[str] = ()) -> tuple[str, ...]:
        """Return the labels at these indices ``(N,)``."""
        return tuple(labels[int(i)] for i in targets)

    def read(self, output: Tensor, labels: Sequence[str] = ()) -> list[Prediction]:
        """Return the most probable label of each row and its probability."""
        p, best = output.max(dim=-1)
        labelled = zip(self.answers(best, labels), p.tolist(), strict=True)
        return [Prediction(label=label, probability=p) for label, p in labelled]

    def expected(self, answer: str) -> str | None:
        """Return that another label is expected, if it is the one reserved for declined texts."""
        return "labels other than 'none', the answer when declined" if answer == NONE else None


class VocabularyHead(SoftmaxHead):
    """The head for the next token of a text; answers are token numbers, as text."""

    name, noun, domain, vocabulary = "vocabulary", "tokens", "text", True
    cards = ("texts", "none")

    def output(self, logits: Tensor, *, temperature: float | Tensor = 1.0) -> Tensor:
        """Return softmax(logits / T), which sums to 1 within 1e-6 over fifty thousand tokens.

        torch's own softmax adds so many small numbers sequentially, and is off by some 2e-5.
        """
        scaled = logits / temperature
        mass = (scaled - scaled.amax(dim=-1, keepdim=True)).exp()
        return mass / mass.sum(dim=-1, keepdim=True)

    def targets(self, answers: Sequence[str], labels: Sequence[str] = ()) -> Tensor:
        """Return the tokens' numbers ``(N,)``.

        Raises:
            UsageError: If an answer is not a token number.
        """
        strange = next((a for a in answers if not (a.isascii() and a.isdigit())), None)
        if strange is not None:
            raise UsageError(
                "not every answer is a token",
                expected="tokens by number, as `Backbone.unit_rows` writes them",
                found=repr(strange)[:40],
            )
        return torch.tensor([int(a) for a in answers], dtype=torch.int64)

    def answers(self, targets: Tensor, labels: Sequence[str] = ()) -> tuple[str, ...]:
        """Return the tokens' numbers ``(N,)``, as text."""
        return tuple(map(str, targets.tolist()))

    def nats(self, output: Tensor, rows: Sequence[Row]) -> Tensor:
        """Return −log p of each row's token ``(N,)``."""
        target = self.targets([r.label for r in rows])
        return -output.gather(1, target[:, None])[:, 0].clamp_min(TINY).double().log()

    def groups(self, answers: Sequence[str]) -> tuple[str, ...]:
        """Return one class for all: the tokens of a domain are not classes."""
        return ("",) * len(answers)

    def labels_in(self, answers: Sequence[str]) -> set[str]:
        """Return the empty set: the answers are the texts' own tokens, and labels are ignored."""
        return set()


class NumberHead(Head):
    """The head for numbers; a row is right when round(ŷ / u) = round(y / u), u the resolution.

    That is "exact match after rounding" (seed 000).
    """

    name, noun, domain = "number", "numbers", "texts with a number"
    probabilities = distribution = False

    def output(self, logits: Tensor, *, temperature: float | Tensor = 1.0) -> Tensor:
        """Return the logits ``(B, 1)``: the number itself, which has no temperature."""
        return logits

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the mean squared error of ``(B, 1)`` against ``(B,)``."""
        return nn.functional.mse_loss(logits.squeeze(-1), targets)

    def targets(self, answers: Sequence[str], labels: Sequence[str] = ()) -> Tensor:
        """Return the answers as numbers, ``(N,)``.

        Raises:
            UsageError: If an answer is not a finite number.
        """
        strange = next((a for a in answers if self.expected(a) is not None), None)
        if strange is not None:
            found = repr(strange)[:40]
            raise UsageError("not every target is a number", expected="finite numbers", found=found)
        return torch.tensor([float(a) for a in answers], dtype=torch.float32)

    def answers(self, targets: Tensor, labels: Sequence[str] = ()) -> tuple[str, ...]:
        """Return the numbers ``(N,)`` as text, with every digit."""
        return tuple(repr(float(x)) for x in targets)

    def units(self, targets: Tensor, *, classifier: Tensor | None) -> TargetScaler:
        """Return the targets' spread as scale, and their mean as shift if there is a bias."""
        spread = float(targets.double().std(unbiased=False))
        least = torch.finfo(torch.float32).tiny
        if spread <= max(SMALLEST * float(targets.abs().max()), least):
            spread = 1.0  # equal but for rounding
        if classifier is None:
            return TargetScaler(scale=spread, shift=float(targets.mean()))
        return TargetScaler(scale=spread, hidden=spread / (float(classifier.norm()) or 1.0))

    def right(self, output: Tensor, rows: Sequence[Row], labels: Sequence[str] = ()) -> Tensor:
        """Return whether the number rounds to the row's, ``(N,)``."""
        target = self.targets([r.label for r in rows])
        same = torch.round(output[:, 0] / self.resolution) == torch.round(target / self.resolution)
        return same.to(torch.float64)

    def error(self, output: Tensor, rows: Sequence[Row]) -> Tensor:
        """Return |ŷ − y|, ``(N,)``; its mean is the MAE."""
        return (output[:, 0] - self.targets([r.label for r in rows])).abs().to(torch.float64)

    def read(self, output: Tensor, labels: Sequence[str] = ()) -> list[Prediction]:
        """Return each number, with its rounded form as the label."""
        return [Prediction(label=self.rounded(float(x)), value=float(x)) for x in output[:, 0]]

    def groups(self, answers: Sequence[str]) -> tuple[str, ...]:
        """Return one class for all: numbers are not classes."""
        return (VALUE,) * len(answers)

    def labels_in(self, answers: Sequence[str]) -> set[str]:
        """Return the only label of the task, after checking that the answers are numbers."""
        self.targets(answers)
        return {VALUE}

    def expected(self, answer: str) -> str | None:
        """Return that a finite number is expected, if the answer is not one."""
        try:
            return None if math.isfinite(float(answer)) else "a finite number"
        except ValueError:
            return "a finite number"

    def canonical(self, answer: str, text: str) -> str | None:
        """Return a number rounded to the resolution, as `right` rounds it."""
        if self.expected(answer) is not None:
            return None
        number = float(self.targets([answer])[0])
        return self.rounded(number) if math.isfinite(number) else None

    def rounded(self, number: float) -> str:
        """Return the nearest multiple of the resolution, as text."""
        exponent = Decimal(repr(self.resolution)).normalize().as_tuple().exponent
        digits = max(0, -exponent) if isinstance(exponent, int) else 0
        return f"{round(number / self.resolution) * self.resolution + 0.0:.{digits}f}"


HEADS: dict[str, type[Head]] = {
    h.name: h for h in (SoftmaxHead, SigmoidHead, SpanHead, VocabularyHead, NumberHead)
}
"""Every head, by the name that `TASKS` uses."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a bus answers.

    Attributes:
        name: Its name in manifests.
        unit: What a row of the bus is.
        head: How rows are answered, trained and evaluated.
    """

    name: str
    unit: Unit
    head: Head


def make_task(name: str, *, resolution: float = 1.0) -> Task:
    """Return the task that a backbone's manifest names.

    Raises:
        UnknownNameError: If no such task is registered.
    """
    if name not in TASKS:
        raise UnknownNameError("task", name, TASKS)
    spec = TASKS[name]
    return Task(name=name, unit=Unit(spec.unit), head=HEADS[spec.head](resolution=resolution))


CLASSIFICATION = make_task(DEFAULT_TASK)


def register_task(name: str, head: type[Head], *, unit: Unit = Unit.TEXT) -> None:
    """Register a task, and its head, under a name that manifests may use.

    Raises:
        ValueError: If the task is registered already, or another head has the head's name.
    """
    if name in TASKS or HEADS.get(head.name, head) is not head:
        raise ValueError(f"task {name!r} with head {head.name!r} is registered already")
    TASKS[name] = TaskSpec(unit=unit.value, head=head.name, classifier=not head.vocabulary)
    HEADS[head.name] = head


def expert_task(expert: ExpertManifest, backbone: BackboneManifest | None) -> Task:
    """Return an expert's task: its backbone's, or the one that its manifest alone implies."""
    if backbone is not None:
        return make_task(backbone.task, resolution=backbone.resolution)
    if expert.reads.causal:
        return make_task("generation")
    if expert.thresholds:  # answers of sets and spans are parsed alike, unless a label is no span's
        placed = any(label_of(y) != y for y in expert.labels)
        return make_task("multi-label" if placed and not expert.span_rules else "spans")
    return make_task("regression" if expert.labels == (VALUE,) else DEFAULT_TASK)
