"""Adding two numbers on a grid, and how answers are evaluated (seed 000).

    x = (a/100, b/100),  y = (a + b)/200,  a, b in 1..100

Legend for shapes, here and in every file of `toy`: N points of the grid (10,000), E experts (5),
P points of a segment (400), Q points of all segments (2,000), M networks trained side by side.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

__all__ = [
    "PLACES",
    "SEGMENTS",
    "UNITS",
    "Grid",
    "Systems",
    "grid",
    "oracle",
    "score",
    "systems",
]

SIDE, UNITS = 100, 200
"""Largest operand; y times `UNITS` is the sum."""

SEGMENTS = ((1, 20), (21, 40), (41, 60), (61, 80), (81, 100))
"""Both operands of a segment lie between its ends."""

PLACES = (*(f"{low}-{high}" for low, high in SEGMENTS), "off")
"""Where answers are evaluated: each segment, and the 8,000 points outside all segments."""

Systems = Mapping[str, Tensor]
"""The answers ŷ ``(N,)`` of each way to combine the experts."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Grid:
    """All pairs of operands, in float64 except for the networks' inputs.

    Attributes:
        x: ``(N, 2)``.
        inputs: The same in float32.
        sums: a + b, ``(N,)``.
        y: ``(N,)``.
        home: The points of each segment, ``(E, P)``.
        owner: The segment that oracle routing assigns to a point, ``(N,)``: its own, or the
            segment of the mean of a and b for a point in no segment.
        inside: Whether a point lies in a segment, ``(N,)``.
    """

    x: Tensor
    inputs: Tensor
    sums: Tensor
    y: Tensor
    home: Tensor
    owner: Tensor
    inside: Tensor

    @property
    def union(self) -> Tensor:
        """The points of all segments, ``(Q,)``."""
        return self.home.flatten()


@cache
def grid() -> Grid:
    """Return the grid, one shared instance."""
    numbers = torch.arange(1, SIDE + 1, dtype=torch.float64)
    pairs = torch.cartesian_prod(numbers, numbers)  # (N, 2)
    sums, segment = pairs.sum(1), (pairs - 1).div(20, rounding_mode="floor")
    inside = segment[:, 0] == segment[:, 1]
    home = [torch.nonzero(inside & (segment[:, 0] == i)).flatten() for i in range(len(SEGMENTS))]
    mean = torch.ceil(sums / 2)
    return Grid(
        x=pairs / SIDE,
        inputs=(pairs / SIDE).float(),
        sums=sums,
        y=sums / UNITS,
        home=torch.stack(home),
        owner=(mean - 1).div(20, rounding_mode="floor").long(),
        inside=inside,
    )


def oracle(outputs: Tensor) -> Tensor:
    """Return the answer of each point's own expert, ``(N,)``, from all answers ``(E, N)``."""
    return outputs.gather(0, grid().owner[None]).squeeze(0)


def systems(outputs: Tensor, *, alpha: Tensor, averaged: Tensor, alone: Tensor) -> Systems:
    """Return the answers of every way to combine five experts.

    Args:
        outputs: Each expert's answers, ``(E, N)``.
        alpha: A learned router's weights, ``(N, E)``.
        averaged: The answers of the expert with the averaged parameters, ``(N,)``.
        alone: The answers of a single model used everywhere, ``(N,)``.
    """
    outputs = outputs.double()
    return {
        "oracle": oracle(outputs),
        "learned": (alpha.double().T * outputs).sum(0),
        "uniform": outputs.mean(0),
        "parameters": averaged.double(),
        "alone": alone.double(),
    }


def score(answers: Tensor) -> dict[str, dict[str, float]]:
    """Evaluate answers ``(N,)`` in every place.

    Returns:
        By measure: ``accuracy`` is the share with round(200 ŷ) = a + b; ``mae`` and ``max`` are
        the mean and the largest |200 ŷ − (a + b)|, in units of the sum.
    """
    points = grid()
    sums = UNITS * answers.double()
    right, error = (torch.round(sums) == points.sums).double(), (sums - points.sums).abs()
    where = [*points.home, torch.nonzero(~points.inside).flatten()]
    return {
        "accuracy": {n: float(right[p].mean()) for n, p in zip(PLACES, where, strict=True)},
        "mae": {n: float(error[p].mean()) for n, p in zip(PLACES, where, strict=True)},
        "max": {n: float(error[p].max()) for n, p in zip(PLACES, where, strict=True)},
    }
