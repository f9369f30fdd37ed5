"""The causal router: γ(k | x_≤t), trained for the worst mixture of domains (seed 002).

    logits = W_r [ z_t | c_t ] + b
    min over θ of max over λ in the simplex of Σ_k λ_k (ℓ_k(θ) − ℓ_k(own)) / (ℓ_k(base) − ℓ_k(own))

c_t is what was said before (`core.generate.context`). ℓ is the loss of the residual sum, on
sketches (`core.sketch`): weights trained for a mixture lose there by being soft, and those trained
for the sum are better in a mixture as well. Regrets count as shares of what the own expert gains
over the backbone, both on the same tokens: how hard tokens are, and how much there is to gain,
differ between domains by more than regrets do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from ..receipt import Robust
from ..robust.minimax import MinimaxResult, MinimaxSettings, minimax
from ..sketch import Sketch
from .base import ColumnData
from .linear import LinearRouter
from .robust import from_two_starts, told

__all__ = ["CausalMixtureRouter", "CausalRouter", "Tokens"]

BATCH = 128
LEAST = 0.01
"""Nats a token: an expert that gains less is taken to gain as much."""
RATE, DECAY = 5e-4, 0.1
ELSEWHERE = 0.005
"""Weight of what teaches the backbone's column: more of it, and experts say less at home."""
ROUNDS = 5
"""Steps of the game for every step of the ordinary training."""


@dataclass(frozen=True, eq=False)
class Tokens:
    """Tokens of one domain.

    Attributes:
        z: What the router hears, ``(N, W)``.
        sketch: What the residual sum makes of them.
        own: log p of the own expert, ``(N,)``.
        gain: What the own expert gains over the backbone, nats a token.
    """

    z: Tensor
    sketch: Sketch
    own: Tensor
    gain: float

    @classmethod
    def of(cls, z: Tensor, sketch: Sketch, column: int) -> Tokens:
        """Return a column's tokens; one whose expert gains next to nothing is not all that counts.

        Args:
            z: What the router hears, ``(N, W)``.
            sketch: What the residual sum makes of them.
            column: Whose they are.
        """
        own = sketch.alone()[:, column]
        base = sketch.log_p(torch.zeros_like(sketch.shift))
        return cls(z, sketch, own, max(float((own - base).mean()), LEAST))

    def some(self, generator: torch.Generator) -> Tokens:
        """Return a batch of them."""
        rows = torch.randint(len(self.z), (min(BATCH, len(self.z)),), generator=generator)
        return Tokens(self.z[rows], self.sketch[rows], self.own[rows], self.gain)


class CausalRouter(LinearRouter):
    """A linear router over tokens, robust in the residual form it answers with."""

    kind = "causal"
    reads_answers = True
    sketches = True
    found: Robust | None = None
    """How the last game ended; None before there was one."""

    def finish(
        self,
        columns: Sequence[ColumnData],
        *,
        steps: int,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Play the game over the columns with tokens, from the ordinary router and from nothing.

        The one with the smaller worst regret on gate rows is kept; `found` says how it ended. Where
        there is no residual sum of all, as with labels of their own, the ordinary router stays.
        """
        fit = [(k, d.z, d.sketch) for k, d in enumerate(columns)]
        aside = [(k, g.z, g.sketch) for k, d in enumerate(columns) if (g := d.gate) is not None]
        rows = _tokens(fit)
        if len(rows) < 2:  # noqa: PLR2004  (there is no mixture to be robust against)
            return
        names = [d.column for d in columns if d.sketch is not None]
        others = [(k, d.z) for k, d in enumerate(columns) if d.sketch is None]
        judged = _tokens(aside) or rows
        played = from_two_starts(self, partial(self._play, rows, judged, others, steps, progress))
        with torch.no_grad():
            lost = torch.stack([(r.own - self._log_p(r)).mean() for r in judged])
        self.found = told(names, replace(played, regrets=lost))

    def _play(
        self,
        rows: Sequence[Tokens],
        aside: Sequence[Tokens],
        others: Sequence[tuple[int, Tensor]],
        steps: int,
        progress: Callable[[int, int], None] | None,
    ) -> MinimaxResult:
        generator = torch.Generator().manual_seed(self.seed)
        return minimax(
            self,
            losses=lambda: self._regrets([r.some(generator) for r in rows]),
            aside=lambda: self._regrets(aside),
            reference=torch.zeros(len(rows)),
            settings=MinimaxSettings(
                steps=ROUNDS * steps, learning_rate=RATE, weight_decay=DECAY, every=25
            ),
            elsewhere=lambda: self._elsewhere(others, generator),
            progress=progress,
        )

    def _regrets(self, rows: Sequence[Tokens]) -> Tensor:
        """Return by domain which share of its expert's gain the residual sum loses, ``(K,)``."""
        return torch.stack([(r.own - self._summed(r)).mean() / r.gain for r in rows])

    def _summed(self, rows: Tokens) -> Tensor:
        """Return log p of the answers in the residual form, ``(N,)``."""
        return rows.sketch.log_p(torch.softmax(self(rows.z), dim=-1))

    def _log_p(self, rows: Tokens) -> Tensor:
        """Return log p of the answers as this kind answers, ``(N,)``."""
        return self._summed(rows)

    def _elsewhere(
        self, others: Sequence[tuple[int, Tensor]], generator: torch.Generator
    ) -> Tensor:
        """Return the loss that keeps columns without answers, the backbone's too, to some rows."""
        total = self.bias.new_zeros(())
        for k, z in others:
            rows = torch.randint(len(z), (min(BATCH, len(z)),), generator=generator)
            mass = torch.log_softmax(self(z[rows]), dim=-1)[:, k]
            total = total - ELSEWHERE * mass.mean()
        return total


class CausalMixtureRouter(CausalRouter):
    """The same weights, answering with the proper mixture of the experts' distributions."""

    kind = "causal-mixture"
    output = "mixture"

    def _log_p(self, rows: Tokens) -> Tensor:
        gate = torch.log_softmax(self(rows.z), dim=-1)
        return torch.logsumexp(gate + rows.sketch.alone(), dim=-1)


def _tokens(rows: Sequence[tuple[int, Tensor, Sketch | None]]) -> list[Tokens]:
    return [Tokens.of(z, s, k) for k, z, s in rows if s is not None]
