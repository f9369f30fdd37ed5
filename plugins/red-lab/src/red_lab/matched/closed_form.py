"""The host's default router over separately trained experts: closed form, no gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

import redhost
from red_lab.matched.data import Problem
from redhost.core.bus.bus import Readout
from redhost.core.routers import build_router
from redhost.core.routers.domain_statistics import Statistics
from redhost.core.training.router import RouterSettings, train_router

__all__ = ["ClosedFormRouter", "closed_form_router"]


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
    router = build_router("evidence", config, problem.domains, 0)
    if router is None:
        raise redhost.UsageError("this host has no evidence router")
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
