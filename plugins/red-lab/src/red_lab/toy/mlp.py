"""Networks 2-64-64-1 with ReLU, M of them trained side by side as stacked tensors.

A stack is a list of weights and biases, layer by layer: W ``(M, in, out)``, b ``(M, 1, out)``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from red_lab.toy.data import grid

__all__ = ["LAYERS", "MLPRecipe", "Stack", "average", "fit", "forward", "join", "start"]

LAYERS = ((2, 64), (64, 64), (64, 1))

Stack = list[Tensor]


@dataclass(frozen=True, kw_only=True)
class MLPRecipe:
    """Training settings of the networks: Adam, the rate decayed to zero along a cosine.

    Attributes:
        steps: Steps.
        batch: Points a step, drawn with replacement.
        rate: First rate.
    """

    steps: int = 4000
    batch: int = 100
    rate: float = 2e-3


def start(count: int, *, generator: torch.Generator, shared: bool = False) -> Stack:
    """Return `count` new networks, uniform within ±1/√in like torch's linear layers.

    Args:
        count: M.
        generator: Source of randomness.
        shared: Give all of them the same weights.
    """
    drawn = 1 if shared else count
    stack = []
    for wide, out in LAYERS:
        for rows in (wide, 1):
            values = torch.rand(drawn, rows, out, generator=generator) * 2 - 1
            stack.append((values * wide**-0.5).repeat(count // drawn, 1, 1))
    return stack


def join(stacks: Sequence[Stack]) -> Stack:
    """Return one stack of all networks, in order."""
    return [torch.cat(parts) for parts in zip(*stacks, strict=True)]


def average(stack: Stack) -> Stack:
    """Return the network whose parameters are the means of all networks' parameters."""
    return [parameter.mean(0, keepdim=True) for parameter in stack]


def forward(stack: Stack, x: Tensor) -> Tensor:
    """Return every network's output.

    Args:
        stack: M networks.
        x: ``(M, B, 2)``, or ``(B, 2)`` for all of them.

    Returns:
        ``(M, B)``.
    """
    hidden = x if x.dim() == 3 else x.expand(len(stack[0]), -1, -1)  # noqa: PLR2004
    for n in range(0, len(stack) - 2, 2):
        hidden = torch.relu(torch.baddbmm(stack[n + 1], hidden, stack[n]))
    return torch.baddbmm(stack[-1], hidden, stack[-2]).squeeze(-1)


def fit(
    stack: Stack,
    *,
    pool: Tensor,
    target: Tensor,
    head: Callable[[Tensor], Tensor],
    recipe: MLPRecipe,
    generator: torch.Generator,
) -> Stack:
    """Return the networks after independent training: no loss depends on another's weights.

    Args:
        stack: M initial networks.
        pool: The points of the grid that each one is trained on, ``(M, any)``.
        target: Target values of ``head(network)`` everywhere on the grid, ``(M, N)``.
        head: Applied to the outputs ``(M, B)``.
        recipe: Training settings.
        generator: Source of randomness for drawing points.
    """
    stack, x = [p.clone().requires_grad_(True) for p in stack], grid().inputs
    target = target.float()
    optimizer = torch.optim.Adam(stack, lr=recipe.rate, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=max(recipe.steps, 1))
    for _ in range(recipe.steps):
        drawn = torch.randint(pool.shape[1], (len(pool), recipe.batch), generator=generator)
        points = pool.gather(1, drawn)  # (M, B)
        error = head(forward(stack, x[points])) - target.gather(1, points)
        optimizer.zero_grad()
        error.square().mean(1).sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
    return [p.detach() for p in stack]
