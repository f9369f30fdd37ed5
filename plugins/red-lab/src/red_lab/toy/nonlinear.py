"""Experiment B: five networks 2-64-64-1, and controls that explain why their averages fail.

B                  each on its own segment: accurate there, both averages collapse
B shared start     the same from one initialisation, which does not help
B all              each on all segments: outputs average well, parameters do not
B all, shared start    the same from one initialisation
B all, trained start   five copies of one trained network, trained further in different orders
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch
from torch import Tensor

from red_lab.toy.data import SEGMENTS, Systems, grid, systems
from red_lab.toy.linear import MIDDLE
from red_lab.toy.mlp import MLPRecipe, Stack, average, fit, forward, join, start

__all__ = ["measure", "outputs", "train"]

E = len(SEGMENTS)


def train(seed: int, *, recipe: MLPRecipe) -> Mapping[str, Stack]:
    """Return the networks of every row above, five each."""
    generator = torch.Generator().manual_seed(seed)
    union = grid().union.expand(E, -1)
    home = grid().home.repeat(1, E)  # as wide as the union
    begun = [start(E, generator=generator, shared=s) for s in (False, True, False, True)]
    trained = _fit(join(begun), torch.cat([home, home, union, union]), recipe, generator)
    names = ("B", "B shared start", "B all", "B all, shared start")
    found = {n: [p[i * E : (i + 1) * E] for p in trained] for i, n in enumerate(names)}
    copies = [p[:1].repeat(E, 1, 1) for p in found["B all"]]
    further = dataclasses.replace(recipe, steps=recipe.steps // 4, rate=recipe.rate / 2)
    found["B all, trained start"] = _fit(copies, union, further, generator)
    return found


def outputs(stack: Stack) -> Tensor:
    """Return every network's answers on the whole grid, ``(M, N)``, in float64."""
    with torch.inference_mode():
        return forward(stack, grid().inputs).double()


def measure(stacks: Mapping[str, Stack], *, alpha: Tensor) -> dict[str, Systems]:
    """Evaluate every way to combine the networks of every row.

    Args:
        stacks: Five networks each.
        alpha: The learned router's weights, ``(N, E)``.
    """
    found = {}
    for name, stack in stacks.items():
        answers, averaged = outputs(stack), outputs(average(stack))[0]
        found[name] = systems(answers, alpha=alpha, averaged=averaged, alone=answers[MIDDLE])
    return found


def _fit(stack: Stack, pool: Tensor, recipe: MLPRecipe, generator: torch.Generator) -> Stack:
    return fit(
        stack,
        pool=pool,
        target=grid().y.expand(len(pool), -1),
        head=lambda f: f,
        recipe=recipe,
        generator=generator,
    )
