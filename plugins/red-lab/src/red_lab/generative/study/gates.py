"""Every router of the study: one linear form on [z | c], and how each is trained.

average        least loss under the traffic, λ = its frequencies
balanced       least loss with every domain alike, λ = 1/K
robust         least worst regret: λ moves, the reference is the own expert on the same rows
robust shares  the same with each regret in units of what its own expert gains on the base
distilled      the posterior over experts of the whole passage, taught to a student that sees a part
statistics     closed form, Gaussians with one covariance
Losses and regrets are bits per byte. All start from nothing, learn from `fit` rows and keep the
step that is best on `gate` rows by their own yardstick.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn

import redhost
from red_lab.generative.corpora import Part
from red_lab.generative.study.bench import Bench
from red_lab.generative.study.kept import kept_tensors
from red_lab.generative.study.posterior import passage_posterior
from red_lab.generative.study.tables import BASE, Tables
from redhost.robust import MinimaxSettings, distil_gate, minimax, mixture_losses

__all__ = ["LEAST", "RARER", "Gates", "Heard", "frequencies", "heard_of", "regret_of"]

RARER = 100
"""How many bytes of any other domain the traffic has for one of the rare domain."""
BATCH = 128
LEAST = 0.01
"""A gain, in bits per byte, below which a domain is taken to have that one."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Heard:
    """What a router sees of a part of a domain.

    Attributes:
        x: [z | c] ``(N, 3·D)``.
        log_p: log p_j of the tokens ``(N, K)``.
        lengths: Tokens of each passage.
        scale: Bits per byte of a nat per token.
    """

    x: Tensor
    log_p: Tensor
    lengths: tuple[int, ...]
    scale: float

    def first(self, rows: int) -> Heard:
        """Return the first rows."""
        return Heard(x=self.x[:rows], log_p=self.log_p[:rows], lengths=(), scale=self.scale)

    def passages(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Cut rows ``(N, …)`` into the passages'."""
        return torch.split(rows, list(self.lengths))


def heard_of(bench: Bench, tables: Tables, domain: str, part: Part) -> Heard:
    """Return what a router sees of a part."""
    told = bench.part(domain, part)
    return Heard(
        x=bench.hear(told),
        log_p=tables.experts_of(domain, part),
        lengths=told.lengths,
        scale=told.scale,
    )


def frequencies(domains: Sequence[str], rare: str) -> Tensor:
    """Return λ ``(K,)`` of traffic in which one domain is `RARER` times rarer than each other."""
    each = torch.tensor([1 / RARER if d == rare else 1.0 for d in domains])
    return each / each.sum()


def regret_of(gate: nn.Module, rows: Sequence[Heard]) -> Tensor:
    """Return each domain's loss less that of its own expert on the same rows ``(K,)``, bits a byte.

    Another part's loss would not do for a reference: how hard its texts are differs by more than
    the regrets that λ is to follow.
    """
    losses = mixture_losses(gate, [(h.x, h.log_p) for h in rows])
    own = torch.stack([-h.log_p[:, k].mean() for k, h in enumerate(rows)])
    return torch.tensor([h.scale for h in rows]) * (losses - own)


class Gates:
    """The routers of one seed, trained when first asked for.

    Args:
        bench: The texts.
        tables: Likelihoods of this seed's experts.
        seed: Of the batches.
        folder: Where trained routers are kept.
    """

    def __init__(self, bench: Bench, tables: Tables, *, seed: int, folder: Path) -> None:
        self.bench, self.tables, self.seed, self.folder = bench, tables, seed, folder
        count = len(bench.domains)
        self.even = torch.full((count,), 1 / count)

    @cached_property
    def fit(self) -> list[Heard]:
        """The rows that routers learn from, by domain."""
        return [heard_of(self.bench, self.tables, d, "fit") for d in self.bench.domains]

    @cached_property
    def aside(self) -> list[Heard]:
        """The rows by which they are kept, by domain."""
        return [heard_of(self.bench, self.tables, d, "gate") for d in self.bench.domains]

    def average(self, rare: str, *, few: bool = False) -> redhost.Router:
        """Return the average-loss router under traffic in which a domain is rare."""
        start = frequencies(self.bench.domains, rare)
        return self._played(_name("average", rare, few), start, rare=rare if few else None)

    def balanced(self) -> redhost.Router:
        """Return the router for which every domain counts alike."""
        return self._played("balanced", self.even)

    def robust(self, *, few: str | None = None) -> redhost.Router:
        """Return the robust router; `few` names a domain of which there are few rows."""
        name = "robust" if few is None else _name("robust", few, True)
        return self._played(name, self.even, moves=True, rare=few)

    def shares(self) -> redhost.Router:
        """Return the robust router whose regrets are shares of the own expert's gain."""
        return self._played("robust shares", self.even, moves=True, unit=self.gains)

    @cached_property
    def gains(self) -> Tensor:
        """By how much every domain's own expert beats the base on gate rows, bits per byte."""
        told = [
            float((heard.log_p[:, k] - self.tables.column(BASE, d, "gate")).mean()) * heard.scale
            for k, (d, heard) in enumerate(zip(self.bench.domains, self.aside, strict=True))
        ]
        return torch.tensor(told).clamp_min(LEAST)

    def distilled(self) -> redhost.Router:
        """Return the student of the posterior over whole passages, every domain alike."""

        def make(gate: redhost.Router) -> None:
            distil_gate(
                gate,
                teacher=_Constant(len(self.even)),
                rows=[self._lesson(h) for h in self.fit],
                aside=[self._lesson(h) for h in self.aside],
                weights=self.even,
                steps=self.bench.setting.lessons,
            )

        return self._kept("distilled", "linear", make)

    def statistics(self) -> redhost.Router:
        """Return the closed form."""

        def make(gate: redhost.Router) -> None:
            redhost.train_router(
                gate,
                [
                    redhost.ColumnData(
                        column=domain,
                        z=heard.x,
                        statistics=redhost.Statistics.of_rows(heard.x, [""] * len(heard.x)),
                    )
                    for domain, heard in zip(self.bench.domains, self.fit, strict=True)
                ],
                columns=self.bench.domains,
                settings=redhost.RouterSettings(),
            )

        return self._kept("statistics", "statistics", make)

    def _played(
        self,
        name: str,
        start: Tensor,
        *,
        moves: bool = False,
        rare: str | None = None,
        unit: Tensor | None = None,
    ) -> redhost.Router:
        def make(gate: redhost.Router) -> None:
            self._play(gate, start, moves, rare, torch.ones(1) if unit is None else unit)

        return self._kept(name, "linear", make)

    def _play(
        self, gate: nn.Module, start: Tensor, moves: bool, rare: str | None, unit: Tensor
    ) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        rows, setting = self._seen(rare), self.bench.setting
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

    def _seen(self, rare: str | None) -> list[Heard]:
        """Return the fit rows; of a domain that is rare also in rows, one in `RARER`."""
        return [
            h.first(max(2, len(h.x) // RARER)) if d == rare else h
            for d, h in zip(self.bench.domains, self.fit, strict=True)
        ]

    def _lesson(self, heard: Heard) -> tuple[Tensor, Tensor]:
        told = passage_posterior(heard.passages(heard.log_p), self.even)
        return heard.x, torch.cat(told)

    def _kept(self, name: str, kind: str, make: Callable[[redhost.Router], None]) -> redhost.Router:
        """Return a router from its file, or train it and write it down."""

        def trained() -> dict[str, Tensor]:
            fresh = self._fresh(kind)
            make(fresh)
            return fresh.state_dict()

        tensors, _ = kept_tensors(self.folder / f"{name}.safetensors", trained)
        gate = self._fresh(kind)
        gate.load_tensors(tensors)
        return gate.requires_grad_(False)

    def _fresh(self, kind: str) -> redhost.Router:
        made = redhost.build_router(
            kind, self.bench.backbone.bus_config(), self.bench.domains, self.seed
        )
        assert made is not None  # noqa: S101  (a built-in kind)
        return made


class _Constant(nn.Module):
    """A gate that says nothing of its own, so that the lesson is the posterior itself."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def forward(self, x: Tensor) -> Tensor:
        """Return zeros ``(B, K)``."""
        return x.new_zeros(len(x), self.count)


def _name(kind: str, rare: str, few: bool) -> str:
    return f"{kind}, few {rare}" if few else f"{kind}, rare {rare}"


def _draw(heard: Heard, generator: torch.Generator) -> Heard:
    index = torch.randint(len(heard.x), (min(BATCH, len(heard.x)),), generator=generator)
    return Heard(x=heard.x[index], log_p=heard.log_p[index], lengths=(), scale=heard.scale)
