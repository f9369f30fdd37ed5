"""One recipe for all systems of a data set, and the training loop of the joint systems.

The loop does the same steps and random draws as `redhost_author.training.expert.train_expert`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import redhost_author
import torch
from torch import Tensor

from red_lab.matched.data import DataPart
from red_lab.matched.system import System
from red_lab.red.experts import Budget

__all__ = ["ARITHMETIC", "TEXT", "Recipe", "Tick", "descend"]

Tick = Callable[[str], None]
"""Called with the name of the system in training, after each of its epochs."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Training settings of all systems; the last epoch is used.

    Attributes:
        epochs: Passes over the rows; for an expert, over those of its domain.
        batch: Rows a step.
        learning_rate: AdamW's peak, decayed to zero along a cosine.
        weight_decay: AdamW's.
        dropout: Share of z's entries dropped while training.
    """

    epochs: int
    batch: int
    learning_rate: float
    weight_decay: float
    dropout: float

    def settings(
        self, *, form: str, space: Literal["hidden", "labels"], rank: int, seed: int
    ) -> redhost_author.ExpertSettings:
        """Return the same settings for `train_expert`, without its background term."""
        return redhost_author.ExpertSettings(
            form=form,
            space=space,
            rank=rank,
            epochs=self.epochs,
            batch=self.batch,
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            dropout=self.dropout,
            off_domain=0.0,
            seed=seed,
        )


ARITHMETIC = Recipe(
    epochs=Budget().epochs,
    batch=Budget().batch,
    learning_rate=Budget().learning_rate,
    weight_decay=Budget().weight_decay,
    dropout=0.0,
)
"""The settings with which `redhost lab red` trains every expert."""

TEXT = Recipe(
    epochs=redhost_author.ExpertSettings().epochs,
    batch=redhost_author.ExpertSettings().batch,
    learning_rate=redhost_author.ExpertSettings().learning_rate,
    weight_decay=redhost_author.ExpertSettings().weight_decay,
    dropout=redhost_author.ExpertSettings().dropout,
)
"""The settings of experts and union head in `redhost lab text`; `choice` selects the epochs."""


def descend(
    system: System, part: DataPart, *, recipe: Recipe, seed: int, tick: Callable[[], None]
) -> None:
    """Train a system on rows, in place."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(
        system.parameters(), lr=recipe.learning_rate, weight_decay=recipe.weight_decay
    )
    steps, step = recipe.epochs * -(-len(part) // recipe.batch), 0
    system.train()
    for _ in range(recipe.epochs):
        for rows in torch.split(torch.randperm(len(part), generator=generator), recipe.batch):
            z = _dropped(part.z[rows], recipe.dropout, generator)
            loss = system.loss(part.h[rows], z, part.target[rows])
            for group in optimizer.param_groups:
                group["lr"] = recipe.learning_rate * 0.5 * (1 + math.cos(math.pi * step / steps))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            step += 1
        tick()
    system.eval()


def _dropped(z: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Return z with a share of its entries dropped and the others scaled up."""
    if not share:
        return z
    keep = torch.rand(z.shape, generator=generator) >= share
    return z * keep / (1 - share)
