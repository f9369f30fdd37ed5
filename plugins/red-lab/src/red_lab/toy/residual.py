"""Experiment C as the seed writes it: a linear base plus five residual experts 0.1 · MLP(x).

The same experts in a second form, ε · tanh(MLP(x)), are bounded by construction. Proposition 3
needs such a bound, since a bound observed on a segment does not hold elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from red_lab.toy.data import SEGMENTS, Systems, grid, oracle, systems
from red_lab.toy.mlp import MLPRecipe, average, fit, join, start
from red_lab.toy.nonlinear import outputs

__all__ = ["BASES", "BOUNDS", "SCALE", "Residuals", "base", "train"]

SCALE = 0.1
BASES: Mapping[str, tuple[float, float, float]] = {
    "exact": (0.5, 0.5, 0.0),
    "near": (0.49, 0.5, 0.0),
    "rough": (0.4, 0.4, 0.05),
}
"""w₁, w₂ and b of each base."""

BOUNDS: Mapping[str, float] = {"near": 0.02, "rough": 0.2}
"""ε of the bounded experts: about twice and 1.3 times the base's largest error."""

E = len(SEGMENTS)


@dataclass(frozen=True, kw_only=True, eq=False)
class Residuals:
    """Five trained experts on one base.

    Attributes:
        base: The base's answers, ``(N,)``.
        parts: r_i, ``(E, N)``.
        averaged: r of the expert with the averaged parameters, ``(N,)``.
    """

    base: Tensor
    parts: Tensor
    averaged: Tensor

    def use(self, *, alpha: Tensor) -> Systems:
        """Return the answers of every way to combine them; ``sum`` has every weight at 1."""
        answers = self.base + self.parts
        found = systems(answers, alpha=alpha, averaged=self.base + self.averaged, alone=self.base)
        return {**found, "sum": self.base + self.parts.sum(0)}

    def largest(self) -> tuple[float, float]:
        """Return the largest |r_i| on the experts' own segments, and outside them."""
        inside = grid().inside
        home = oracle(self.parts)[inside].abs().max()
        away = torch.ones_like(self.parts, dtype=torch.bool).scatter(1, grid().home, False)
        return float(home), float(self.parts[away].abs().max())


def base(name: str) -> Tensor:
    """Return a base's answers, ``(N,)``."""
    w1, w2, b = BASES[name]
    return w1 * grid().x[:, 0] + w2 * grid().x[:, 1] + b


def train(seed: int, *, recipe: MLPRecipe) -> dict[str, Residuals]:
    """Train five experts of each form on each of its bases.

    Returns:
        The experts by form and base, e.g. ``scaled, exact``.
    """
    generator = torch.Generator().manual_seed(seed)
    begun = join([start(E, generator=generator) for _ in FORMS])
    bases = {name: base(name.split(", ")[1]) for name in FORMS}
    stack = fit(
        begun,
        pool=grid().home.repeat(len(FORMS), 1),
        target=torch.stack([grid().y - b for b in bases.values()]).repeat_interleave(E, dim=0),
        head=_heads,
        recipe=recipe,
        generator=generator,
    )
    found = {}
    for i, (name, head) in enumerate(FORMS.items()):
        own = [p[i * E : (i + 1) * E] for p in stack]
        parts, averaged = head(outputs(own)), head(outputs(average(own)))[0]
        found[name] = Residuals(base=bases[name], parts=parts, averaged=averaged)
    return found


def _heads(f: Tensor) -> Tensor:
    """Return r ``(M, B)`` of all forms' networks from their outputs ``(M, B)``."""
    parts = f.reshape(len(FORMS), E, -1)
    return torch.cat([head(part) for head, part in zip(FORMS.values(), parts, strict=True)])


def _bounded(bound: float) -> Callable[[Tensor], Tensor]:
    return lambda f: bound * torch.tanh(f)


FORMS: Mapping[str, Callable[[Tensor], Tensor]] = {
    **{f"scaled, {name}": lambda f: SCALE * f for name in BASES},
    **{f"bounded, {name}": _bounded(bound) for name, bound in BOUNDS.items()},
}
"""r as a function of the network's output."""
