"""RED: experts trained separately, each on its own domain, then frozen; and routers over them.

    experts write hidden states        p = softmax(W_c (h + Σ_i α_i Δ_i(z)))
    experts have labels of their own   p(y) = α_i p_i(y), where i is the expert that has label y

A router is trained on the rows' domains, or is the host's default: closed form, no gradient.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import cast

import torch
from redhost_author.training.expert import ExpertRows, train_expert
from torch import Tensor, nn

import redhost
from red_lab.matched.data import DataPart, Problem
from red_lab.matched.systems import Recipe, System, Tick, products
from red_lab.training import built_in_router
from redhost.core.bus.bus import Readout
from redhost.core.routers.domain_statistics import Statistics
from redhost.core.training.router import RouterSettings, train_router

__all__ = [
    "Alone",
    "ClosedFormRouter",
    "ComposedSystem",
    "alone",
    "closed_form_router",
    "train_experts",
    "train_gate",
]


class ClosedFormRouter(nn.Module):
    """The host's default router with the evidence it takes as input: z → logits ``(B, E)``."""

    def __init__(self, bus: redhost.Bus) -> None:
        super().__init__()
        # In a tuple: the experts in it are the composition's parameters, not the router's.
        self.bus = (bus,)

    def forward(self, z: Tensor) -> Tensor:
        """Return logits ``(B, E)`` for z ``(B, D)``."""
        (bus,) = self.bus
        return cast("Tensor", bus.router(z, bus.signals(z)))

    def stored(self) -> int:
        """Return how many numbers the router stores, all in closed form."""
        (bus,) = self.bus
        return sum(p.numel() for p in bus.router.parameters())

    def multiply_adds(self) -> int:
        """Return the multiply-adds of one row: whiteners, distances, and W_c Δ_i of all experts."""
        (bus,) = self.bus
        whiteners = sum(p.numel() for p in bus.router.parameters() if p.dim() == 3)  # noqa: PLR2004
        distances = bus.router.get_parameter("center").numel()
        confidences = 0 if bus.classifier is None else len(bus.ids) * bus.classifier.numel()
        return whiteners + distances + confidences


def closed_form_router(problem: Problem, experts: Sequence[redhost.Expert]) -> ClosedFormRouter:
    """Solve the host's default router kind, `evidence`, in closed form.

    Sums are over the training rows, every input once. The confidence of an expert on its own
    domain and on other domains is measured on the validation rows, since it would be overconfident
    on its training rows.
    """
    named = dict(zip(problem.domains, experts, strict=True))
    shared = () if problem.classifier is None else problem.labels
    config = redhost.BusConfig(width=problem.width, labels=shared, eps=problem.norm.eps)
    router = built_in_router("evidence", config, problem.domains)
    bus = redhost.Bus(
        Readout(classifier=problem.classifier, labels=shared),
        norm=problem.norm,
        router=router,
        experts=named,
    )
    known, valid = problem.train.distinct(), problem.valid.distinct()
    with torch.no_grad():
        data = [
            redhost.plugins.ColumnData(
                column=name,
                z=valid.of(k).z,
                statistics=Statistics.of_rows(
                    known.of(k).z, [problem.labels[int(y)] for y in known.of(k).target]
                ),
                signals=bus.signals(valid.of(k).z),
            )
            for k, name in enumerate(bus.columns)
        ]
    train_router(router, data, columns=bus.columns, settings=RouterSettings())
    return ClosedFormRouter(bus)


def train_experts(
    problem: Problem, *, recipe: Recipe, seed: int, tick: Tick
) -> tuple[redhost.Expert, ...]:
    """Train one residual expert for each domain, on the rows of this domain only."""
    own = problem.classifier is None
    settings = recipe.settings(
        form="residual", space="labels" if own else "hidden", rank=problem.rank, seed=seed
    )
    return tuple(
        train_expert(
            _answers(problem, problem.train.of(k)),
            Readout(classifier=problem.classifier, labels=problem.labels),
            labels=problem.labels_of[k],
            settings=settings,
            progress=lambda *_: tick("RED"),
        ).expert
        for k in range(len(problem.domains))
    )


def train_gate(problem: Problem, *, recipe: Recipe, seed: int, tick: Tick) -> redhost.Expert:
    """Train a linear router on the rows' domains: a linear expert with the domains as labels."""
    settings = recipe.settings(form="linear", space="labels", rank=1, seed=seed)
    answers = [problem.domains[int(k)] for k in problem.train.owner]
    return train_expert(
        ExpertRows(h=problem.train.h, z=problem.train.z, answers=answers),
        Readout(),
        labels=problem.domains,
        settings=settings,
        progress=lambda *_: tick("RED"),
    ).expert


class ComposedSystem(System):
    """Frozen experts under a router.

    Args:
        experts: E of them, in the order of the domains.
        router: z → logits ``(B, E)``.
        classifier: W_c ``(C, D)``; None if experts have labels of their own.
    """

    def __init__(
        self, *, experts: Sequence[redhost.Expert], router: nn.Module, classifier: Tensor | None
    ) -> None:
        super().__init__()
        self.experts, self.router = nn.ModuleList(experts), router
        self.register_buffer("classifier", classifier)

    classifier: Tensor | None

    def alpha(self, z: Tensor) -> Tensor | None:
        """Return softmax(router(z)) ``(B, E)``."""
        return torch.softmax(self.router(z), dim=-1)

    def log_p(self, h: Tensor, z: Tensor) -> Tensor:
        """Return log p(y|x) ``(B, C)``."""
        logits: Tensor = self.router(z)
        if self.classifier is None:
            own = zip(torch.log_softmax(logits, dim=-1).unbind(1), self.experts, strict=True)
            return torch.cat([a[:, None] + torch.log_softmax(e(z), -1) for a, e in own], dim=-1)
        deltas = torch.stack([e(z) for e in self.experts], dim=1)  # (B, E, D)
        moved = h + torch.einsum("be,bed->bd", torch.softmax(logits, dim=-1), deltas)
        return torch.log_softmax(moved @ self.classifier.T, dim=-1)

    def parts(self) -> list[redhost.Expert]:
        """Return the experts in the order of the domains."""
        return [e for e in self.experts if isinstance(e, redhost.Expert)]

    def multiply_adds(self) -> int:
        """Return the multiply-adds of one row: of every expert, the router and the classifier."""
        shared = 0 if self.classifier is None else self.classifier.numel()
        if isinstance(self.router, ClosedFormRouter):
            shared += self.router.multiply_adds()
        return shared + products(self)


class Alone(System):
    """One expert at weight 1, the system that its own training minimised.

    Args:
        expert: The expert.
        classifier: W_c ``(C, D)``; None if it has labels of its own.
        first: The index of its first label, if it has labels of its own.
    """

    def __init__(self, expert: redhost.Expert, *, classifier: Tensor | None, first: int) -> None:
        super().__init__()
        self.expert, self.first = expert, first
        self.register_buffer("classifier", classifier)

    classifier: Tensor | None

    def log_p(self, h: Tensor, z: Tensor) -> Tensor:
        """Return log p_i(y|x), over all labels ``(B, C)`` or its own ``(B, L_i)``."""
        delta: Tensor = self.expert(z)
        logits = delta if self.classifier is None else (h + delta) @ self.classifier.T
        return torch.log_softmax(logits, dim=-1)

    def loss(self, h: Tensor, z: Tensor, target: Tensor) -> Tensor:
        """Return the mean −log p_i(y|x) of its own rows."""
        return super().loss(h, z, target - self.first if self.classifier is None else target)


def alone(problem: Problem, experts: Sequence[redhost.Expert]) -> list[Alone]:
    """Return every expert as a system of its own."""
    firsts = itertools.accumulate((len(y) for y in problem.labels_of[:-1]), initial=0)
    return [
        Alone(e, classifier=problem.classifier, first=first if problem.classifier is None else 0)
        for e, first in zip(experts, firsts, strict=True)
    ]


def _answers(problem: Problem, part: DataPart) -> ExpertRows:
    return ExpertRows(h=part.h, z=part.z, answers=[problem.labels[int(y)] for y in part.target])
