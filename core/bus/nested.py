"""Nested ranks: the first r units of an expert are an expert of rank r.

    Δ_r(z) = V[:, :r] σ(U[:r] z + u[:r]) + v

An expert trained at all its ranks at once loses least when it is cut, so one package serves hosts
of several sizes. (The loss is a mean over ranks, as that of Kusupati et al. 2022, arXiv
2205.13147, is a sum over sizes; nested dropout, Rippel, Gelbart and Adams 2014, arXiv 1402.0915,
draws one rank a step.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ...registry.errors import UsageError
from ...registry.package.forms import FORMS
from .experts import ClassifierExpert, Expert, LowRank, expert_from_tensors


def first_units(expert: Expert, rank: int) -> Expert:
    """Return the first units of an expert as a separate expert that shares no memory with it.

    Args:
        expert: Of a form that has a rank.
        rank: r, at most the expert's.

    Raises:
        UsageError: If its form has no rank.
    """
    if not isinstance(expert, (LowRank, ClassifierExpert)):
        raise UsageError(f"a {type(expert).__name__} has no units to be cut to {rank}")
    cut = _cut(expert, expert.state_dict(), rank)
    return expert_from_tensors(
        {name: tensor.detach().clone() for name, tensor in cut.items()},
        space=expert.space,
        activation=expert.activation,
        labels=expert.labels,
        temperature=expert.temperature,
    )


def at_each_rank(expert: Expert, ranks: Sequence[int]) -> tuple[Expert, ...]:
    """Return an expert at each of its ranks, sharing its weights, the full rank last.

    Args:
        expert: The expert being trained.
        ranks: Its ranks, ascending; empty if it has only one.
    """
    return (*(_FirstUnits(expert, rank) for rank in ranks[:-1]), expert)


class _FirstUnits(Expert):
    """The first units of an expert, sharing its weights: gradients reach these units alone."""

    def __init__(self, whole: Expert, rank: int) -> None:
        super().__init__(space=whole.space, labels=whole.labels, temperature=whole.temperature)
        self.whole, self.rank = whole, rank

    def forward(self, z: Tensor) -> Tensor:
        """Return Δ_r(z), ``(B, out)``, for z ``(B, D)``."""
        cut = _cut(self.whole, dict(self.whole.named_parameters()), self.rank)
        delta: Tensor = torch.func.functional_call(self.whole, cut, (z,))
        return delta


def _cut(expert: Expert, tensors: Mapping[str, Tensor], rank: int) -> dict[str, Tensor]:
    """Return the tensors of the first units, as views, cut in the dimension of size R."""
    forms = (form.letters(expert.space) for form in FORMS.values())
    letters = next(form for form in forms if form.keys() == tensors.keys())
    return {
        name: tensor.narrow(letters[name].index("R"), 0, rank) if "R" in letters[name] else tensor
        for name, tensor in tensors.items()
    }
