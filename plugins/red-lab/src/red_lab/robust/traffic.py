"""Uneven traffic: five frozen experts, and one domain a hundred times rarer than each other one.

Each expert is trained on one half of its domain; the traffic comes from the other half. It is
uneven in one of two ways. In the scene ``weights`` every domain has the same number of rows, as on
routing cards, and the mean loss is weighted by the traffic's frequencies, like in a large log of
traffic. In the scene ``rows`` there is also only one row of the rare domain for a hundred rows of
another. The gate rows, on which every training selects its step and reference losses are computed,
are even in both: they come with the experts' cards.

The monolith is one adapter with as many parameters as all experts. It has the form of the experts
and rank E·R, and is trained on the traffic together with the experts' halves: on the mean loss,
with equal weight for every domain, or by group DRO (Sagawa and others 2020), whose λ moves to
domains with a large loss.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from redhost_robust import MinimaxSettings, minimax
from torch import Tensor, nn

import redhost
from red_lab.matched.apart import Alone, alone, train_experts
from red_lab.matched.data import DataPart, Problem
from red_lab.matched.systems import Recipe, Tick
from redhost.core.bus.experts import ClassifierExpert, LowRank

__all__ = [
    "RARER",
    "RouterRows",
    "UnevenTraffic",
    "aggregate",
    "answer_log_p",
    "domain_losses",
    "lay_out",
    "router_rows",
    "train_monolith",
    "untrained",
]

RARER = 100
"""How many rows of any other domain there are for one of the rare domain."""

LEAST = 1e-12
"""The lower limit of p: an expert assigns probability 0 to labels that it does not have."""

RouterRows = tuple[Tensor, Tensor]
"""z ``(N, D)`` and log p_j(y|x) of the rows' answers ``(N, K)``."""


@dataclass(frozen=True, kw_only=True, eq=False)
class UnevenTraffic:
    """The data and experts of one seed.

    Attributes:
        problem: The data set; its `train` is the experts' half.
        experts: By domain, frozen.
        rare: The rare domain's index.
        even: The other half, the same number of rows for every domain.
        reference: Each expert's own loss on its gate rows ``(K,)``, nats.
    """

    problem: Problem
    experts: tuple[redhost.Expert, ...]
    rare: int
    even: tuple[DataPart, ...]
    reference: Tensor

    @property
    def frequencies(self) -> Tensor:
        """The frequency of each domain in the traffic, ``(K,)``."""
        each = torch.ones(len(self.experts))
        each[self.rare] = 1 / RARER
        return each / each.sum()

    def seen(self, parts: Sequence[DataPart], *, thinned: bool) -> tuple[DataPart, ...]:
        """Return the rows of a scene: all, or 1 in `RARER` of the rare domain."""
        if not thinned:
            return tuple(parts)
        few = max(2, round(len(parts[self.rare]) / RARER))
        return tuple(p.some(few) if k == self.rare else p for k, p in enumerate(parts))

    def router_rows(self, parts: Sequence[DataPart]) -> tuple[RouterRows, ...]:
        """Return the rows of every domain in the form that routers are trained on."""
        return tuple(router_rows(self.problem, self.experts, p) for p in parts)

    def by_domain(self, part: DataPart) -> tuple[DataPart, ...]:
        """Return a part's rows domain by domain."""
        return tuple(part.of(k) for k in range(len(self.experts)))


def lay_out(problem: Problem, *, recipe: Recipe, seed: int, tick: Tick) -> UnevenTraffic:
    """Split the training rows, train the experts on their half, set the rare domain by the seed."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(problem.train), generator=generator)
    half = len(order) // 2
    own = replace(problem, train=problem.train[order[:half]])
    rest = problem.train[order[half:]]
    count = len(problem.domains)
    parts = [rest.of(k) for k in range(count)]
    experts = train_experts(own, recipe=recipe, seed=seed, tick=tick)
    aside = tuple(router_rows(own, experts, problem.valid.of(k)) for k in range(count))
    return UnevenTraffic(
        problem=own,
        experts=experts,
        rare=seed % count,
        even=level(parts),
        reference=torch.stack([-log_p[:, k].mean() for k, (_, log_p) in enumerate(aside)]),
    )


def level(parts: Sequence[DataPart]) -> tuple[DataPart, ...]:
    """Return the same number of rows of every domain, that of the smallest."""
    size = min(map(len, parts))
    return tuple(p.some(size) for p in parts)


def router_rows(problem: Problem, experts: Sequence[redhost.Expert], part: DataPart) -> RouterRows:
    """Return z and log p_j of each row's answer by every expert alone."""
    return part.z, log_likelihood(problem, experts, part)


def log_likelihood(problem: Problem, experts: Sequence[redhost.Expert], part: DataPart) -> Tensor:
    """Return log p_j(y|x) ``(N, K)``, at least log `LEAST`."""
    with torch.no_grad():
        columns = [answer_log_p(a, part) for a in alone(problem, experts)]
    return torch.stack(columns, dim=1)


def answer_log_p(expert: Alone, part: DataPart) -> Tensor:
    """Return log p(y|x) of the rows' answers ``(N,)``; log `LEAST` for labels that are missing."""
    log_p = expert.log_p(part.h, part.z)
    place = part.target - expert.first
    known = (place >= 0) & (place < log_p.shape[1])
    found = log_p.gather(1, place.clamp(0, log_p.shape[1] - 1)[:, None]).squeeze(1)
    least = math.log(LEAST)
    return torch.where(known, found, least).clamp_min(least)


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
