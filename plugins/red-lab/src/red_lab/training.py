"""Shared parts of trainings: schedules, steps, epochs, checkpoints, one thread, a router."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import redhost
from red_lab.metrics import whole
from redhost.core.routers import build_router

__all__ = [
    "adamw",
    "built_in_router",
    "descend",
    "descend_over",
    "one_thread",
    "rate",
    "resume",
    "store",
]


def adamw(model: nn.Module, *, weight_decay: float) -> torch.optim.Optimizer:
    """Return the optimizer of a language model; `descend` sets its learning rate."""
    return torch.optim.AdamW(
        model.parameters(), lr=0.0, betas=(0.9, 0.98), weight_decay=weight_decay
    )


def rate(step: int, *, steps: int, warmup: int) -> float:
    """Return the learning rate of a step, as a share of its peak.

    It rises over ``warmup`` steps, holds for half of all steps and falls along a cosine to 2 %.
    """
    after = max(0.0, 2 * step / steps - 1)
    decay = 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * after))
    return min(1.0, (step + 1) / warmup) * decay


def descend(
    model: nn.Module, optimizer: torch.optim.Optimizer, loss: Tensor, *, learning_rate: float
) -> float:
    """Take one step with clipped gradients; return the loss."""
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    optimizer.step()
    return float(loss.detach())


def descend_over(
    module: nn.Module,
    rows: int,
    loss: Callable[[Tensor], Tensor],
    *,
    recipe: Any,
    generator: torch.Generator,
    tick: Callable[[], None] = lambda: None,
) -> None:
    """Train a module in place by AdamW, whose rate falls to zero along a cosine.

    Args:
        module: The module.
        rows: Number of rows.
        loss: Rows of a step ``(B,)`` → their loss.
        recipe: Has ``epochs``, ``batch``, ``learning_rate`` and ``weight_decay``.
        generator: Draws the order of rows.
        tick: Called after each epoch.
    """
    optimizer = torch.optim.AdamW(module.parameters(), weight_decay=recipe.weight_decay)
    steps, step = recipe.epochs * -(-rows // recipe.batch), 0
    for _ in range(recipe.epochs):
        for index in torch.split(torch.randperm(rows, generator=generator), recipe.batch):
            value = loss(index)
            for group in optimizer.param_groups:
                group["lr"] = recipe.learning_rate * 0.5 * (1 + math.cos(math.pi * step / steps))
            optimizer.zero_grad()
            value.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            step += 1
        tick()


def built_in_router(
    kind: str, config: redhost.BusConfig, columns: Sequence[str], seed: int = 0
) -> redhost.Router:
    """Return an untrained router of a built-in kind.

    Raises:
        UsageError: If there is no such kind.
    """
    router = build_router(kind, config, tuple(columns), seed)
    if router is None:
        raise redhost.UsageError("unknown router", expected="a built-in kind", found=kind)
    return router


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread, for a fixed order of summation; restore the setting afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def store(
    file: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    step: int,
    run: dict[str, Any],
) -> None:
    """Write a checkpoint; a crash leaves the old one intact."""
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    with whole(file) as fresh:
        torch.save({**state, "run": run}, fresh)


def resume(
    file: Path | None,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    run: dict[str, Any],
) -> int:
    """Load a checkpoint of the same run, if there is one; return the first step to take.

    Raises:
        ValueError: If the file is a checkpoint of another run.
    """
    if file is None or not file.exists():
        return 0
    state = torch.load(file, weights_only=True)
    if state["run"] != run:
        raise ValueError(f"{file} is a checkpoint of another run: {state['run']}, not {run}")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])
