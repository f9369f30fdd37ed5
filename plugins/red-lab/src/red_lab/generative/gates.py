"""The routers of the study: all are linear in [z | c], and differ in their training.

average        minimises the loss under the traffic, λ = its frequencies
balanced       minimises the loss with all domains at equal weight, λ = 1/K
robust         minimises the worst regret: λ moves; the reference is the own expert, same rows
robust shares  the same with each regret in units of its own expert's gain over the base
distilled      the whole passage's posterior over experts, distilled into a causal student
statistics     closed form, Gaussians with one covariance
Losses and regrets are bits per byte. All start from zero, are trained on `fit` rows, and keep the
step that is best on `gate` rows by their own objective.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path

import torch
from redhost_robust import MinimaxSettings, distil_gate, minimax, mixture_losses
from torch import Tensor, nn

import redhost
from red_lab.generative.context import StudyContext
from red_lab.generative.judge import (
    BASE,
    GateRows,
    Tables,
    cached_tensors,
    gate_rows_of,
    passage_posterior,
)
from red_lab.training import built_in_router
from redhost.core.routers.domain_statistics import Statistics
from redhost.core.training.router import RouterSettings, train_router

__all__ = ["LEAST", "RARER", "TrainedGates", "frequencies", "regret_of"]

RARER = 100
"""Bytes of each other domain in the traffic for one byte of the rare domain."""
BATCH = 128
LEAST = 0.01
"""Smallest gain, in bits per byte; smaller gains are raised to it."""


def frequencies(domains: Sequence[str], rare: str) -> Tensor:
    """Return λ ``(K,)`` of traffic in which one domain is `RARER` times rarer than each other."""
    each = torch.tensor([1 / RARER if d == rare else 1.0 for d in domains])
    return each / each.sum()


def regret_of(gate: nn.Module, rows: Sequence[GateRows]) -> Tensor:
    """Return each domain's loss minus its own expert's on the same rows ``(K,)``, bits per byte.

    The loss on another part cannot serve as the reference: parts differ in difficulty by more than
    the regrets that λ has to follow.
    """
    losses = mixture_losses(gate, [(h.x, h.log_p) for h in rows])
    own = torch.stack([-h.log_p[:, k].mean() for k, h in enumerate(rows)])
    return torch.tensor([h.scale for h in rows]) * (losses - own)


class TrainedGates:
    """The routers of one seed, trained when first asked for.

    Args:
        context: The texts.
        tables: Likelihoods of this seed's experts.
        seed: Seed of the batches.
        folder: The folder of trained routers.
    """

    def __init__(self, context: StudyContext, tables: Tables, *, seed: int, folder: Path) -> None:
        self.context, self.tables, self.seed, self.folder = context, tables, seed, folder
        count = len(context.domains)
        self.even = torch.full((count,), 1 / count)

    @cached_property
    def fit(self) -> list[GateRows]:
        """The rows that routers are trained on, by domain."""
        return [gate_rows_of(self.context, self.tables, d, "fit") for d in self.context.domains]

    @cached_property
    def aside(self) -> list[GateRows]:
        """The rows on which the best step is chosen, by domain."""
        return [gate_rows_of(self.context, self.tables, d, "gate") for d in self.context.domains]

    def shown(self, rare: str) -> dict[str, redhost.Router]:
        """Return all routers by name; the average-loss router under traffic with a rare domain."""
        played, traffic = self.played, frequencies(self.context.domains, rare)
        return {
            "average": played(f"average, rare {rare}", traffic),
            "balanced": played("balanced", self.even),
            "robust": played("robust", self.even, moves=True),
            "robust shares": played("robust shares", self.even, moves=True, unit=self.gains),
            "distilled": self._cached("distilled", "linear", self._distil),
            "statistics": self._cached("statistics", "statistics", self._solve),
        }

    def rare(self) -> dict[str, redhost.Router]:
        """Return the routers with every domain rare in turn: in weight, then also in rows."""
        routers = {"robust": self.played("robust", self.even, moves=True)}
        for rare in self.context.domains:
            traffic, few = frequencies(self.context.domains, rare), f"few {rare}"
            average, robust = f"average, {few}", f"robust, {few}"
            routers[f"average, rare {rare}"] = self.played(f"average, rare {rare}", traffic)
            routers[average] = self.played(average, traffic, few=rare)
            routers[robust] = self.played(robust, self.even, moves=True, few=rare)
        return routers

    @cached_property
    def gains(self) -> Tensor:
        """Gain of every domain's own expert over the base on gate rows, bits per byte."""
        gained = [
            float((rows.log_p[:, k] - self.tables.column(BASE, d, "gate")).mean()) * rows.scale
            for k, (d, rows) in enumerate(zip(self.context.domains, self.aside, strict=True))
        ]
        return torch.tensor(gained).clamp_min(LEAST)

    def played(
        self,
        name: str,
        start: Tensor,
        *,
        moves: bool = False,
        few: str | None = None,
        unit: Tensor | float = 1.0,
    ) -> redhost.Router:
        """Return the linear router of a game over the domains.

        Args:
            name: Name of its file.
            start: The initial λ ``(K,)``.
            moves: Whether λ moves towards the largest regret.
            few: A domain of which only one in `RARER` fit rows is trained on.
            unit: What regrets are divided by, ``(K,)``.
        """
        setting = self.context.setting

        def make(gate: redhost.Router) -> None:
            generator, rows = torch.Generator().manual_seed(self.seed), self.seen(few)
            minimax(
                gate,
                losses=lambda: regret_of(gate, [_draw(h, generator) for h in rows]) / unit,
                aside=lambda: regret_of(gate, self.aside) / unit,
                reference=torch.zeros(len(rows)),
                settings=MinimaxSettings(
                    steps=setting.gate_steps,
                    learning_rate=setting.gate_rate,
                    weight_decay=setting.gate_decay,
                    rate_lambda=0.05 if moves else 0.0,
                    every=setting.gate_every,
                ),
                start=start,
            )

        return self._cached(name, "linear", make)

    def seen(self, few: str | None) -> list[GateRows]:
        """Return the fit rows; a domain that has few rows has one in `RARER` of them."""
        return [
            h.part(slice(max(2, len(h.x) // RARER))) if d == few else h
            for d, h in zip(self.context.domains, self.fit, strict=True)
        ]

    def _distil(self, gate: redhost.Router) -> None:
        """Distil the posterior of whole passages, all domains at equal weight."""
        fit, aside = (
            [(h.x, torch.cat(passage_posterior(h.passages(), self.even))) for h in rows]
            for rows in (self.fit, self.aside)
        )
        distil_gate(
            gate,
            teacher=self._fresh("linear"),  # zero logits: the target is the posterior itself
            rows=fit,
            aside=aside,
            weights=self.even,
            steps=self.context.setting.lessons,
        )

    def _solve(self, gate: redhost.Router) -> None:
        """Solve the closed-form router."""
        columns = [
            redhost.plugins.ColumnData(
                column=domain,
                z=rows.x,
                statistics=Statistics.of_rows(rows.x, [""] * len(rows.x)),
            )
            for domain, rows in zip(self.context.domains, self.fit, strict=True)
        ]
        train_router(gate, columns, columns=self.context.domains, settings=RouterSettings())

    def _cached(
        self, name: str, kind: str, make: Callable[[redhost.Router], None]
    ) -> redhost.Router:
        """Return a router from its file, or train and save it."""

        def trained() -> dict[str, Tensor]:
            fresh = self._fresh(kind)
            make(fresh)
            return fresh.state_dict()

        tensors = cached_tensors(self.folder / f"{name}.safetensors", trained)
        gate = self._fresh(kind)
        gate.load_tensors(tensors)
        return gate.requires_grad_(False)

    def _fresh(self, kind: str) -> redhost.Router:
        config, columns = self.context.backbone.bus_config(), self.context.domains
        return built_in_router(kind, config, columns, self.seed)


def _draw(rows: GateRows, generator: torch.Generator) -> GateRows:
    index = torch.randint(len(rows.x), (min(BATCH, len(rows.x)),), generator=generator)
    return rows.part(index)
