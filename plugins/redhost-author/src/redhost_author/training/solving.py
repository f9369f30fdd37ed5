"""Linear heads over labels of an expert's own that are solved rather than trained, by task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import singledispatch

from torch import Tensor

from redhost.core.bus.head import Head
from redhost.core.bus.label_set_head import SigmoidHead
from redhost.core.bus.task import SoftmaxHead

from .expert import TrainedExpert
from .label_heads import solve_label_heads
from .linear_head import solve_linear_head

Solver = Callable[[Tensor, Sequence[str], Sequence[str], Callable[[], Tensor]], TrainedExpert]
"""z ``(N, D)``, N answers, the labels it may predict, and a function that returns z ``(M, D)`` of
texts without any of them → the head."""


@singledispatch
def solver_of(head: Head) -> Solver | None:
    """Return how a linear head is solved; None if it has to be trained."""
    return None


@solver_of.register
def _(head: SoftmaxHead) -> Solver | None:
    return lambda z, answers, labels, _: solve_linear_head(z, answers, labels)


@solver_of.register
def _(head: SigmoidHead) -> Solver | None:
    return lambda z, answers, labels, others: solve_label_heads(z, answers, labels, others=others())
