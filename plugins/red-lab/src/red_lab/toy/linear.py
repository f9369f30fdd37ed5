"""Experiment A: five linear experts ŷ = w₁ x₁ + w₂ x₂ + b, each fitted on its segment alone.

Every segment has the same minimiser (½, ½, 0), which least squares finds exactly. How close plain
gradient descent gets depends on the condition number of a segment's Hessian E[x̃ x̃ᵀ],
x̃ = (x₁, x₂, 1).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from red_lab.toy.data import Systems, grid, systems

__all__ = [
    "TRUE",
    "Descent",
    "conditions",
    "design",
    "least_squares",
    "measure",
    "outputs",
    "train",
]

TRUE = (0.5, 0.5, 0.0)
MIDDLE = 2
"""The expert used as "one model alone", since there is no base in this experiment."""


@dataclass(frozen=True, kw_only=True)
class Descent:
    """Settings of plain stochastic gradient descent, the same for every segment, in float32."""

    steps: int = 20000
    batch: int = 32
    rate: float = 0.1


def design(points: Tensor) -> Tensor:
    """Return x̃ = (x₁, x₂, 1) of points ``(…,)`` of the grid, ``(…, 3)``, in float64."""
    x = grid().x[points]
    return torch.cat([x, torch.ones_like(x[..., :1])], dim=-1)


def conditions() -> list[float]:
    """Return the condition number of each segment's Hessian E[x̃ x̃ᵀ]."""
    rows = design(grid().home)  # (E, P, 3)
    hessians = rows.mT @ rows / rows.shape[1]
    return [float(torch.linalg.cond(hessian)) for hessian in hessians]


def least_squares(rows: Tensor, targets: Tensor) -> Tensor:
    """Return the least-squares solutions ``(E, 3)``, of least norm where they are not unique.

    Args:
        rows: x̃, ``(E, P, 3)``.
        targets: ``(E, P)``.
    """
    solved = torch.linalg.lstsq(rows, targets[..., None], driver="gelsd")
    weights: Tensor = solved.solution.squeeze(-1)
    return weights


def train(seed: int, *, descent: Descent) -> dict[str, Tensor]:
    """Return the five experts' weights ``(E, 3)``, by least squares and by SGD.

    Args:
        seed: Random seed of SGD's initial weights and order of rows.
        descent: Settings of SGD.
    """
    home = grid().home
    generator = torch.Generator().manual_seed(seed)
    return {
        "A exact": least_squares(design(home), grid().y[home]),
        "A sgd": _descend(descent, generator).double(),
    }


def outputs(weights: Tensor) -> Tensor:
    """Return the answers of experts of weights ``(…, 3)`` on the whole grid, ``(…, N)``."""
    return weights @ design(torch.arange(len(grid().y))).T


def measure(experts: Mapping[str, Tensor], *, alpha: Tensor) -> dict[str, Systems]:
    """Evaluate every way to combine the experts, for each way to fit them.

    Args:
        experts: Weights ``(E, 3)``.
        alpha: The learned router's weights, ``(N, E)``.
    """
    found = {}
    for name, weights in experts.items():
        answers, averaged = outputs(weights), outputs(weights.mean(0))
        found[name] = systems(answers, alpha=alpha, averaged=averaged, alone=answers[MIDDLE])
    return found


def _descend(descent: Descent, generator: torch.Generator) -> Tensor:
    """Return the weights ``(E, 3)`` found by plain SGD."""
    home = grid().home
    rows, targets = design(home).float(), grid().y[home].float()
    bound = 2**-0.5  # torch's own for a linear layer of two inputs
    weights = (torch.rand(len(home), 3, generator=generator) * 2 - 1) * bound
    for _ in range(descent.steps):
        picked = torch.randint(home.shape[1], (len(home), descent.batch), generator=generator)
        x = rows.gather(1, picked[..., None].expand(-1, -1, 3))
        error = (x * weights[:, None]).sum(-1) - targets.gather(1, picked)
        weights = weights - descent.rate * 2 * (error[..., None] * x).mean(1)
    return weights
