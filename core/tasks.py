"""What a bus answers: one of its labels, or a number.

    classification   output p(y|x) = softmax(logits / T), (B, L)     right: the most probable label
    regression       output ŷ(x) = logits, (B, 1)                     right: rounds to the target
    generation       output p(x_t+1|x_≤t) = softmax(logits), (N, V)    right: the next token

Regression is a bus with one output, named `VALUE`, and no softmax (seed 000): experts add
residuals to the backbone's number, or bring a number of their own, and a mixture of numbers is
their mean under α. Generation is a bus whose rows are the tokens of a text and whose answers are
the vocabulary's tokens, by number (seed 002). The backbone says which task it is; its fingerprint
covers that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from ..registry.contract import VALUE
from ..registry.errors import UsageError
from .rows import Row

__all__ = [
    "NONE",
    "Classification",
    "Generation",
    "Reading",
    "Regression",
    "Task",
    "Units",
    "make_task",
]

NONE = "none"
"""The answer of a router that declines, where the backbone has no labels of its own."""


SMALLEST = 1e-6
"""Spread of targets, as a share of the largest, below which they count as equal."""

Name = Literal["classification", "generation", "regression"]


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What one row of a bus's output says to people."""

    label: str
    probability: float | None = None
    value: float | None = None


@dataclass(frozen=True, kw_only=True)
class Units:
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


class Task(Protocol):
    """How logits become answers, and how answers are learnt and judged."""

    @property
    def name(self) -> Name:
        """The manifest's word for it."""
        ...

    def output(self, logits: Tensor, *, temperature: float = 1.0) -> Tensor:
        """Return what the bus puts out for logits ``(B, C)``, ``(B, C)``."""
        ...

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss of logits ``(B, C)`` against targets ``(B,)``."""
        ...

    def targets(self, answers: Sequence[str], labels: Sequence[str]) -> Tensor:
        """Return targets ``(N,)`` for answers as people write them."""
        ...

    def units(self, targets: Tensor, *, classifier: Tensor | None) -> Units:
        """Return the units for targets ``(N,)``; without W_c for an output of one's own."""
        ...

    def right(self, output: Tensor, rows: Sequence[Row], labels: Sequence[str]) -> Tensor:
        """Say for each row whether the output is right, ``(N,)`` of 0.0 and 1.0."""
        ...

    def read(self, output: Tensor, labels: Sequence[str]) -> list[Reading]:
        """Read the output ``(N, L)`` row by row."""
        ...

    def groups(self, answers: Sequence[str]) -> tuple[str, ...]:
        """Return the class each answer counts for in a domain's statistics."""
        ...


class Classification:
    """One of several labels."""

    name: Name = "classification"

    def output(self, logits: Tensor, *, temperature: float = 1.0) -> Tensor:
        """Return softmax(logits / T) ``(B, C)``."""
        return torch.softmax(logits / temperature, dim=-1)

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy of ``(B, C)`` against ``(B,)``, in nats."""
        return nn.functional.cross_entropy(logits, targets)

    def targets(self, answers: Sequence[str], labels: Sequence[str]) -> Tensor:
        """Return the labels' places ``(N,)``.

        Raises:
            UsageError: If an answer is not among the labels.
        """
        place = {label: n for n, label in enumerate(labels)}
        strange = sorted(set(answers) - place.keys())
        if strange:
            raise UsageError(
                "not every label of the data can be answered",
                expected="labels of the backbone's classifier",
                found=", ".join(strange[:5]),
                hint="Let the expert write labels of its own (--writes labels).",
            )
        return torch.tensor([place[a] for a in answers])

    def units(self, targets: Tensor, *, classifier: Tensor | None) -> Units:
        """Return no units: classes have none."""
        return Units()

    def right(self, output: Tensor, rows: Sequence[Row], labels: Sequence[str]) -> Tensor:
        """Say whether the most probable label is the row's, ``(N,)``."""
        place = {label: n for n, label in enumerate(labels)}
        target = torch.tensor([place.get(r.label, -1) for r in rows], dtype=torch.int64)
        return (output.argmax(dim=-1) == target).to(torch.float64)

    def read(self, output: Tensor, labels: Sequence[str]) -> list[Reading]:
        """Return the most probable label of each row and its probability."""
        best = output.max(dim=-1)
        return [
            Reading(label=labels[int(i)], probability=float(p))
            for i, p in zip(best.indices, best.values, strict=True)
        ]

    def groups(self, answers: Sequence[str]) -> tuple[str, ...]:
        """Return the answers: a class each."""
        return tuple(answers)


@dataclass(frozen=True, kw_only=True)
class Regression:
    """A number.

    Attributes:
        resolution: u, the smallest difference that matters: a row is right when
            round(ŷ / u) = round(y / u), "exact match after rounding" (seed 000).
    """

    resolution: float = 1.0
    name: Name = "regression"

    def output(self, logits: Tensor, *, temperature: float = 1.0) -> Tensor:
        """Return the logits ``(B, 1)``: the number itself, which has no temperature."""
        return logits

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the mean squared error of ``(B, 1)`` against ``(B,)``."""
        return nn.functional.mse_loss(logits.squeeze(-1), targets)

    def targets(self, answers: Sequence[str], labels: Sequence[str] = ()) -> Tensor:
        """Return the numbers that the answers spell, ``(N,)``.

        Raises:
            UsageError: If an answer is no finite number.
        """
        return torch.tensor([_number(a) for a in answers], dtype=torch.float32)

    def units(self, targets: Tensor, *, classifier: Tensor | None) -> Units:
        """Return the targets' spread as scale, and their mean as shift where there is a bias."""
        spread = float(targets.double().std(unbiased=False))
        least = torch.finfo(torch.float32).tiny
        if spread <= max(SMALLEST * float(targets.abs().max()), least):
            spread = 1.0  # all the same, but for rounding
        if classifier is None:
            return Units(scale=spread, shift=float(targets.mean()))
        return Units(scale=spread, hidden=spread / (float(classifier.norm()) or 1.0))

    def right(self, output: Tensor, rows: Sequence[Row], labels: Sequence[str] = ()) -> Tensor:
        """Say whether the number rounds to the row's, ``(N,)``."""
        target = self.targets([r.label for r in rows])
        same = torch.round(output[:, 0] / self.resolution) == torch.round(target / self.resolution)
        return same.to(torch.float64)

    def error(self, output: Tensor, rows: Sequence[Row]) -> Tensor:
        """Return |ŷ − y|, ``(N,)``; its mean is the MAE."""
        return (output[:, 0] - self.targets([r.label for r in rows])).abs().to(torch.float64)

    def read(self, output: Tensor, labels: Sequence[str] = ()) -> list[Reading]:
        """Return each number, spelt to the resolution."""
        return [Reading(label=self.spell(float(x)), value=float(x)) for x in output[:, 0]]

    def groups(self, answers: Sequence[str]) -> tuple[str, ...]:
        """Return one class for all: numbers are no classes."""
        return (VALUE,) * len(answers)

    def spell(self, number: float) -> str:
        """Return the nearest multiple of the resolution, as people write it."""
        exponent = Decimal(repr(self.resolution)).normalize().as_tuple().exponent
        digits = max(0, -exponent) if isinstance(exponent, int) else 0
        return f"{round(number / self.resolution) * self.resolution + 0.0:.{digits}f}"


@dataclass(frozen=True, kw_only=True)
class Generation:
    """The next token of a text; answers are tokens' numbers, written out."""

    name: Name = "generation"

    def output(self, logits: Tensor, *, temperature: float = 1.0) -> Tensor:
        """Return softmax(logits / T), which sums to 1 within 1e-6 over fifty thousand tokens.

        torch's own adds so many small numbers one after the other, and is off by some 2e-5.
        """
        scaled = logits / temperature
        mass = (scaled - scaled.amax(dim=-1, keepdim=True)).exp()
        return mass / mass.sum(dim=-1, keepdim=True)

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy of ``(B, V)`` against ``(B,)``, in nats a token."""
        return nn.functional.cross_entropy(logits, targets)

    def targets(self, answers: Sequence[str], labels: Sequence[str] = ()) -> Tensor:
        """Return the tokens' numbers ``(N,)``.

        Raises:
            UsageError: If an answer is none.
        """
        strange = next((a for a in answers if not (a.isascii() and a.isdigit())), None)
        if strange is not None:
            raise UsageError(
                "not every answer is a token",
                expected="tokens by number, as a backbone that generates unfolds texts to",
                found=repr(strange)[:40],
            )
        return torch.tensor([int(a) for a in answers], dtype=torch.int64)

    def units(self, targets: Tensor, *, classifier: Tensor | None) -> Units:
        """Return no units: tokens have none."""
        return Units()

    def right(self, output: Tensor, rows: Sequence[Row], labels: Sequence[str] = ()) -> Tensor:
        """Say whether the most probable token is the row's, ``(N,)``."""
        return (output.argmax(dim=-1) == self.targets([r.label for r in rows])).to(torch.float64)

    def read(self, output: Tensor, labels: Sequence[str] = ()) -> list[Reading]:
        """Return the most probable token of each row, by number, and its probability."""
        best = output.max(dim=-1)
        return [
            Reading(label=str(int(i)), probability=float(p))
            for i, p in zip(best.indices, best.values, strict=True)
        ]

    def groups(self, answers: Sequence[str]) -> tuple[str, ...]:
        """Return one class for all: a domain's tokens are told apart by nobody."""
        return ("",) * len(answers)


def make_task(name: Name, *, resolution: float = 1.0) -> Task:
    """Return the task a backbone's manifest names."""
    if name == "regression":
        return Regression(resolution=resolution)
    return Generation() if name == "generation" else Classification()


def _number(answer: str) -> float:
    try:
        number = float(answer)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise UsageError(
            "not every target is a number", expected="finite numbers", found=repr(answer)[:40]
        )
    return number
