"""Tasks: what a bus answers. A task is a unit × a head.

    manifest's word    unit     head         output for logits, (B, C)      right
    classification     text     softmax      p(y|x) = softmax(logits / T)   the most probable label
    regression         text     number       ŷ(x) = logits, (B, 1)          rounds to the target
    generation         token    vocabulary   p(x_t+1|x_≤t), (N, V)          the next token
    multi-label        text     sigmoid      p(y|x) = sigmoid(logits / T)   exactly the label set

The unit defines what a row of the bus is. The head defines how a row's logits become an answer, and
how answers are trained and evaluated. To add a head or a unit, write a subclass of `Head` or `Unit`
and call `core.tasks.register_task`.

Regression is a bus with one output, named `VALUE`, and no softmax (seed 000). Experts add residuals
to the backbone's number, or predict numbers of their own, whose mixture is their mean under α.
Generation is a bus whose rows are the tokens of a text and whose answers are token numbers of the
vocabulary (seed 002). Multi-label tasks answer a set of labels (`label_set_head`). The backbone's
manifest names the task, and its fingerprint covers it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import torch
from torch import Tensor, nn

from ...registry.errors import UsageError
from ...registry.package.forms import DEFAULT_TASK, VALUE
from ..label_scores import measure_labels
from ..label_sets import NONE
from ..types import Row
from .experts import Expert
from .head import Head, HeldOut, Prediction, Scorer, TargetScaler, require_labels
from .temperature import shown_temperature
from .unit import Unit, WholeText

SMALLEST = 1e-6
"""Relative spread of targets, as a share of the largest, below which they count as equal."""

TINY = 1e-30
"""Probabilities are clamped to this minimum before the logarithm."""

SURE = 1e-6
"""Probabilities are clamped to [SURE, 1 − SURE], so that their log odds are finite."""


class SoftmaxHead(Head):
    """One of several labels."""

    name, card = "softmax", "vectors"

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
        return [Prediction(label=label or NONE, probability=p) for label, p in labelled]

    def right(self, output: Tensor, rows: Sequence[Row], labels: Sequence[str] = ()) -> Tensor:
        """Return whether each row's label is the most probable output, ``(N,)``."""
        places = self.places([r.label for r in rows], labels)
        return (output.max(dim=-1).indices.cpu() == places).to(torch.float64)

    def read_columns(
        self, heads: Sequence[Head], p: Tensor, labels: Sequence[Sequence[str]]
    ) -> Iterator[list[Prediction]]:
        """Yield the most probable labels of several experts' own outputs ``(n, B, L_i)``."""
        best = p.max(dim=-1)  # one call: a hundred small ones take longer than the encoder's pass
        for sure, at, names in zip(
            best.values.tolist(), best.indices.tolist(), labels, strict=True
        ):
            yield [
                Prediction(label=names[int(n)], probability=x)
                for n, x in zip(at, sure, strict=True)
            ]

    @property
    def scorer(self) -> Scorer | None:
        """F1 by label, and the confusion table."""
        return measure_labels

    def hits(self, logits: Tensor, targets: Tensor) -> Tensor | None:
        """Return whether the targets are the most probable outputs, ``(N,)``."""
        return logits.argmax(-1) == targets

    def places(self, answers: Sequence[str], labels: Sequence[str]) -> Tensor:
        """Return the index of each label among the outputs ``(N,)``, −1 for an unknown one.

        `NONE` is the output `DECLINED`, unless an expert has a label of this name.
        """
        place = {label or NONE: n for n, label in enumerate(labels)}
        place |= {label: n for n, label in enumerate(labels)}
        return torch.tensor([place.get(a, -1) for a in answers], dtype=torch.int64)

    def log_odds(self, p: Tensor) -> Tensor | None:
        """Return the log odds of the most probable label, ``(N,)``, float64."""
        # In float64: near 1, float32 leaves no odds to compare.
        return p.double().amax(-1).logit(eps=SURE)

    def unclaimed(self, p: Tensor, to_backbone: Tensor) -> Tensor:
        """Return which rows' most probable output is `DECLINED`, the first."""
        return p.argmax(-1) == 0

    def declined(self, p: Tensor, labels: Sequence[str], *, shared: bool) -> Prediction:
        """Return `NONE` with its probability, 0 where it is not an output."""
        return Prediction(label=NONE, probability=0.0 if shared else float(p[0]))

    def calibrate(
        self,
        expert: Expert,
        read: Callable[[Sequence[Row]], HeldOut],
        *,
        fit: Sequence[Row],
        gate: Sequence[Row],
    ) -> None:
        """Fit the temperature: T is 1 unless rows that were not learnt from refute that.

        A card has few fit rows, so gate rows are used as well: T does not change the expert's most
        probable label, which is what the gate judges. It does change the probabilities of gate
        rows, from which thresholds to decline and label sets are made: see `model.conformal`.
        """
        if unseen := [*fit, *gate]:
            held = read(unseen)
            expert.temperature = shown_temperature(held.logits, held.targets, loss=self.loss)


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
            raise UsageError(
                "not every target is a number",
                expected="finite numbers",
                found=repr(strange)[:40],
            )
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
        # An output of its own has a bias, which takes the mean; through W_c there is none.
        if classifier is None:
            return TargetScaler(scale=spread, shift=float(targets.mean()))
        # W_c of zeros moves no number: then any unit serves.
        return TargetScaler(scale=spread, hidden=spread / (float(classifier.norm()) or 1.0))

    def right(self, output: Tensor, rows: Sequence[Row], labels: Sequence[str] = ()) -> Tensor:
        """Return whether the number rounds to the row's, ``(N,)``."""
        target = self.targets([r.label for r in rows])
        # Both are rounded: a target may itself lie between two multiples of the resolution.
        equal = torch.round(output[:, 0] / self.resolution) == torch.round(target / self.resolution)
        return equal.to(torch.float64)

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
        # Through float32, as a row's target goes: both are then rounded alike.
        number = float(self.targets([answer])[0])
        return self.rounded(number) if math.isfinite(number) else None

    def rounded(self, number: float) -> str:
        """Return the nearest multiple of the resolution, as text."""
        exponent = Decimal(repr(self.resolution)).normalize().as_tuple().exponent
        digits = max(0, -exponent) if isinstance(exponent, int) else 0
        # Adding 0.0 turns −0.0 into 0.0.
        return f"{round(number / self.resolution) * self.resolution + 0.0:.{digits}f}"


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a bus answers.

    Attributes:
        name: Its name in manifests.
        unit: What a row of the bus is.
        head: How rows are answered, trained and evaluated.
    """

    name: str
    unit: Unit[Any]
    head: Head

    @property
    def one_label(self) -> bool:
        """Whether a text is answered with one of several labels."""
        return self.unit.whole and self.head.distribution


CLASSIFICATION = Task(name=DEFAULT_TASK, unit=WholeText(), head=SoftmaxHead())
