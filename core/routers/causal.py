"""The causal router: γ(k | x_≤t), trained for the worst mixture of domains (seed 002).

    logits = W_r [ z_t | c_t ] + b
    min over θ of max over λ in the simplex of Σ_k λ_k (ℓ_k(θ) − ℓ_k(own)) / (ℓ_k(base) − ℓ_k(own))

c_t is the running context (`core.backbones.tokens`). ℓ is the loss of the residual sum, on
truncated logits (`core.bus.truncated_logits`): weights trained for a mixture lose there by being
soft, and those trained for the sum are better in a mixture as well. Regrets count as shares of
what the own expert gains over the backbone, both on the same tokens: how hard tokens are, and how
much there is to gain, differ between domains by more than regrets do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from ..bus.signals import ANSWERS, TRUNCATED_LOGITS
from ..bus.truncated_logits import TruncatedLogits
from .base import ColumnData
from .linear import LinearRouter
from .minimax import MinimaxResult, MinimaxSettings, minimax
from .robust import from_two_starts, minimax_report

BATCH = 128
LEAST = 0.01
"""Nats a token: an expert that gains less is taken to gain as much."""
RATE, DECAY = 5e-4, 0.1
ELSEWHERE = 0.005
"""Weight of what teaches the backbone's column: more of it, and experts weigh less at home."""
ROUNDS = 5
"""Steps of the game for every step of the ordinary training."""


@dataclass(frozen=True, eq=False)
class Tokens:
    """Tokens of one domain.

    Attributes:
        z: What the router reads, ``(N, W)``.
        truncated: What the residual sum makes of them.
        own: log p of the own expert, ``(N,)``.
        gain: What the own expert gains over the backbone, nats a token.
    """

    z: Tensor
    truncated: TruncatedLogits
    own: Tensor
    gain: float

    @classmethod
    def of(cls, z: Tensor, truncated: TruncatedLogits, column: int) -> Tokens:
        """Return a column's tokens; one whose expert gains next to nothing is not all that counts.

        Args:
            z: What the router reads, ``(N, W)``.
            truncated: What the residual sum makes of them.
            column: Whose they are.
        """
        own = truncated.alone()[:, column]
        base = truncated.log_p(torch.zeros_like(truncated.shift))
        return cls(z, truncated, own, max(float((own - base).mean()), LEAST))

    def some(self, generator: torch.Generator) -> Tokens:
        """Return a batch of them."""
        rows = torch.randint(len(self.z), (min(BATCH, len(self.z)),), generator=generator)
        return Tokens(self.z[rows], self.truncated[rows], self.own[rows], self.gain)


class CausalRouter(LinearRouter):
    """A linear router over tokens, robust in the residual form it answers with."""

    kind = "causal"
    reads = frozenset({ANSWERS, TRUNCATED_LOGITS})

    def fine_tune(
        self,
        columns: Sequence[ColumnData],
        *,
        steps: int,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Play the game over the columns with tokens, from the ordinary router and from nothing.

        The one with the smaller worst regret on gate rows stays; `minimax_report` says how it
        ended. Where there is no residual sum of all, as with labels of their own, the ordinary
        router stays.
        """
        fit = [(k, d.z, d.truncated) for k, d in enumerate(columns)]
        aside = [(k, g.z, g.truncated) for k, d in enumerate(columns) if (g := d.gate) is not None]
        rows = _tokens(fit)
        if len(rows) < 2:  # noqa: PLR2004  (there is no mixture to be robust against)
            return
        names = [d.column for d in columns if d.truncated is not None]
        others = [(k, d.z) for k, d in enumerate(columns) if d.truncated is None]
        judges = _tokens(aside) or rows
        played = from_two_starts(self, partial(self._play, rows, judges, others, steps, progress))
        with torch.no_grad():
            lost = torch.stack([(r.own - self._log_p(r)).mean() for r in judges])
        self.minimax_report = minimax_report(names, replace(played, regrets=lost))

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
        return rows.truncated.log_p(torch.softmax(self(rows.z), dim=-1))

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
        return torch.logsumexp(gate + rows.truncated.alone(), dim=-1)


def _tokens(rows: Sequence[tuple[int, Tensor, TruncatedLogits | None]]) -> list[Tokens]:
    return [Tokens.of(z, s, k) for k, z, s in rows if s is not None]
