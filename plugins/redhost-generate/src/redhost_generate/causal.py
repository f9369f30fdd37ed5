"""The causal router: γ(k | x_≤t), trained for the worst mixture of domains (seed 002).

    logits = W_r [ z_t | c_t ] + b
    min over θ of max over λ in the simplex of Σ_k λ_k (ℓ_k(θ) − ℓ_k(own)) / (ℓ_k(base) − ℓ_k(own))

c_t is the running context (`redhost_generate.tokens`). ℓ is the loss of the residual sum, computed
on truncated logits (`redhost_generate.truncated_logits`). Weights trained for the mixture are soft,
and lose in the residual sum; weights trained for the sum are better in a mixture as well. A regret
is a share of the own expert's gain over the backbone on the same tokens, because difficulty and
achievable gain differ between domains by more than regrets do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from redhost_robust.descent_ascent import MinimaxResult, MinimaxSettings, minimax
from redhost_robust.routers.robust import from_two_starts, minimax_report
from torch import Tensor

from redhost.core.batching import batched_slices
from redhost.core.bus.bus import Bus
from redhost.core.bus.signals import ANSWERS
from redhost.core.routers.base import ColumnData, Router, TruncatedOutputs
from redhost.core.routers.linear import LinearRouter
from redhost_generate.truncated_logits import TruncatedLogits, concat_logits, truncate_logits

__all__ = ["KINDS", "CausalMixtureRouter", "CausalRouter", "Tokens"]

BATCH = 128
LEAST = 0.01
"""Smallest gain of an expert used as a denominator, in nats a token."""
RATE, DECAY = 5e-4, 0.1
ELSEWHERE = 0.005
"""Weight of the backbone column's loss; a larger value lowers experts' weights on their domains."""
ROUNDS = 5
"""Steps of the game for each step of the ordinary training."""


@dataclass(frozen=True, eq=False)
class Tokens:
    """Tokens of one domain.

    Attributes:
        z: What the router reads, ``(N, W)``.
        truncated: Their truncated logits under the residual sum.
        own: log p of the own expert, ``(N,)``.
        gain: The own expert's gain over the backbone, in nats a token.
    """

    z: Tensor
    truncated: TruncatedLogits
    own: Tensor
    gain: float

    @classmethod
    def of(cls, z: Tensor, truncated: TruncatedLogits, column: int) -> Tokens:
        """Return a column's tokens, with the expert's gain bounded from below by `LEAST`.

        Args:
            z: What the router reads, ``(N, W)``.
            truncated: The tokens' truncated logits.
            column: The column that the tokens belong to.
        """
        own = truncated.alone()[:, column]
        base = truncated.log_p(torch.zeros_like(truncated.shift))
        return cls(z, truncated, own, max(float((own - base).mean()), LEAST))

    def some(self, generator: torch.Generator) -> Tokens:
        """Return a random batch of tokens."""
        rows = torch.randint(len(self.z), (min(BATCH, len(self.z)),), generator=generator)
        return Tokens(self.z[rows], self.truncated[rows], self.own[rows], self.gain)


class CausalRouter(LinearRouter):
    """A linear router over tokens, trained to be robust in the residual form it answers with."""

    kind = "causal"
    reads = frozenset({ANSWERS})

    def truncate(self, bus: Bus, h: Tensor, z: Tensor, target: Tensor) -> TruncatedLogits | None:
        """Return the truncated logits of rows; None where experts share no residual sum."""
        if bus.classifier is None or bus.own:
            return None
        cuts = batched_slices(len(h), cost=len(bus.columns) * bus.answers)
        return concat_logits([truncate_logits(bus, h[c], z[c], target[c]) for c in cuts])

    def fine_tune(
        self,
        columns: Sequence[ColumnData],
        *,
        steps: int,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Play the game over the columns with tokens, from the ordinary router and from zero.

        The result with the smaller worst regret on gate rows is kept; `minimax_report` describes
        it. Where experts share no residual sum, as with labels of their own, the ordinary router
        is kept.
        """
        fit = [(k, d.z, d.truncated) for k, d in enumerate(columns)]
        aside = [(k, g.z, g.truncated) for k, d in enumerate(columns) if (g := d.gate) is not None]
        rows = _tokens(fit)
        if len(rows) < 2:  # noqa: PLR2004  (one domain has no mixtures)
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
        """Return for each domain the share of its expert's gain that the sum loses, ``(K,)``."""
        return torch.stack([(r.own - self._summed(r)).mean() / r.gain for r in rows])

    def _summed(self, rows: Tokens) -> Tensor:
        """Return log p of the answers in the residual form, ``(N,)``."""
        return rows.truncated.log_p(torch.softmax(self(rows.z), dim=1))

    def _log_p(self, rows: Tokens) -> Tensor:
        """Return log p of the answers in the form of this kind, ``(N,)``."""
        return self._summed(rows)

    def _elsewhere(
        self, others: Sequence[tuple[int, Tensor]], generator: torch.Generator
    ) -> Tensor:
        """Return the loss that teaches columns without answers, as the backbone's, their rows."""
        total = self.bias.new_zeros(())
        for k, z in others:
            rows = torch.randint(len(z), (min(BATCH, len(z)),), generator=generator)
            mass = torch.log_softmax(self(z[rows]), dim=1)[:, k]
            total = total - ELSEWHERE * mass.mean()
        return total


class CausalMixtureRouter(CausalRouter):
    """`CausalRouter`'s weights; the answer is the proper mixture of the experts' distributions."""

    kind = "causal-mixture"
    output = "mixture"

    def _log_p(self, rows: Tokens) -> Tensor:
        gate = torch.log_softmax(self(rows.z), dim=1)
        return torch.logsumexp(gate + rows.truncated.alone(), dim=1)


KINDS: tuple[type[Router], ...] = (CausalRouter, CausalMixtureRouter)
"""The kinds of this file."""


def _tokens(rows: Sequence[tuple[int, Tensor, TruncatedOutputs | None]]) -> list[Tokens]:
    return [Tokens.of(z, s, k) for k, z, s in rows if isinstance(s, TruncatedLogits)]
