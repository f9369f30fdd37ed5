"""The monolith: one adapter with as many parameters as all experts, trained on the pooled data.

It has the form of the experts and rank E·R, and is trained on the traffic together with the
experts' halves: on the mean loss, with equal weight for every domain, or by group DRO (Sagawa and
others 2020), whose λ moves to domains with a large loss.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from redhost_robust import MinimaxSettings, minimax
from torch import Tensor, nn

import redhost
from red_lab.matched.apart import Alone
from red_lab.matched.data import DataPart, Problem
from red_lab.matched.recipe import Recipe
from red_lab.robust.traffic import UnevenTraffic, level
from redhost.core.bus.experts import ClassifierExpert, LowRank

__all__ = ["aggregate", "domain_losses", "train_monolith", "untrained"]


def untrained(problem: Problem, *, rank: int, seed: int) -> Alone:
    """Return an adapter in the experts' form whose last layer is zero."""
    generator = torch.Generator().manual_seed(seed)
    width, classes = problem.width, len(problem.labels)
    U = torch.randn(rank, width, generator=generator) / width**0.5
    V = torch.zeros(width, rank)
    adapter: redhost.Expert
    if problem.classifier is not None:
        adapter = LowRank(U=U, V=V, activation="gelu", space="hidden")
    else:
        adapter = ClassifierExpert(
            U=U,
            V=V,
            W=torch.zeros(classes, width),
            b=torch.zeros(classes),
            activation="gelu",
            labels=problem.labels,
        )
    return Alone(adapter, classifier=problem.classifier, first=0).requires_grad_(True)


def aggregate(traffic: UnevenTraffic, *, thinned: bool) -> tuple[DataPart, ...]:
    """Return all rows of a scene by domain, including those of the experts' halves."""
    halves = level(traffic.by_domain(traffic.problem.train))
    pairs = zip(halves, traffic.even, strict=True)
    return traffic.seen([_both(*pair) for pair in pairs], thinned=thinned)


def train_monolith(
    traffic: UnevenTraffic,
    parts: Sequence[DataPart],
    *,
    recipe: Recipe,
    start: Tensor,
    moves: bool,
    seed: int,
) -> Alone:
    """Train a monolith on rows by domain.

    It takes as many steps as the recipe's epochs over all rows, with the same number of rows of
    every domain in a batch, weighted by λ.

    Args:
        traffic: Provides the gate rows by which the step is selected.
        parts: The rows.
        recipe: Epochs, batch, rates, dropout.
        start: The initial λ ``(K,)``.
        moves: Whether λ moves to domains with a large loss.
        seed: Random seed of initial weights and batches.
    """
    problem = traffic.problem
    model = untrained(problem, rank=problem.rank * len(parts), seed=seed)
    generator = torch.Generator().manual_seed(seed)
    steps = recipe.epochs * -(-sum(map(len, parts)) // recipe.batch)
    each = -(-recipe.batch // len(parts))
    aside = traffic.by_domain(problem.valid)
    minimax(
        model,
        losses=lambda: domain_losses(
            model, [_draw(p, each, generator) for p in parts], recipe.dropout, generator
        ),
        aside=lambda: domain_losses(model, aside),
        reference=torch.zeros(len(parts)),
        settings=MinimaxSettings(
            steps=steps,
            learning_rate=recipe.learning_rate,
            weight_decay=recipe.weight_decay,
            rate_lambda=0.05 if moves else 0.0,
            every=max(1, steps // 40),
        ),
        start=start,
    )
    return model


def domain_losses(
    model: Alone,
    parts: Sequence[DataPart],
    dropout: float = 0.0,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Return the mean −log p(y|x) of every domain's rows, ``(K,)``."""
    z = torch.cat([p.z for p in parts])
    if dropout:
        z = z * (torch.rand(z.shape, generator=generator) >= dropout) / (1 - dropout)
    log_p = model.log_p(torch.cat([p.h for p in parts]), z)
    each = nn.functional.nll_loss(log_p, torch.cat([p.target for p in parts]), reduction="none")
    return torch.stack([loss.mean() for loss in torch.split(each, [len(p) for p in parts])])


def _draw(part: DataPart, rows: int, generator: torch.Generator) -> DataPart:
    return part[torch.randint(len(part), (rows,), generator=generator)]


def _both(one: DataPart, other: DataPart) -> DataPart:
    return DataPart(
        h=torch.cat([one.h, other.h]),
        z=torch.cat([one.z, other.z]),
        target=torch.cat([one.target, other.target]),
        owner=torch.cat([one.owner, other.owner]),
    )
