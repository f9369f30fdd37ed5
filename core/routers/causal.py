"""The causal router: γ(k | x_≤t), trained for the worst mixture of domains (seed 002).

    logits = W_r [ z_t | c_t ] + b
    min over θ of max over λ in the simplex of Σ_k λ_k (ℓ_k(θ) − ℓ_k(own expert))

c_t is what was said before (`core.generate.context`). ℓ is the loss of the residual sum it answers
with, on sketches (`core.sketch`): one trained as a mixture's weights loses by being soft. Both
losses of a regret are of the same tokens, since how hard tokens are differs by more than regrets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..receipt import Robust
from ..robust.minimax import MinimaxResult, MinimaxSettings, minimax
from ..sketch import Sketch
from .base import ColumnData
from .linear import LinearRouter
from .robust import told

__all__ = ["CausalRouter"]

BATCH = 128
ROUNDS = 5
"""Steps of the game for every step of the ordinary training."""


@dataclass(frozen=True, eq=False)
class _Tokens:
    """Tokens of one domain: z̃ ``(N, W)``, their sketch, and log p of the own expert ``(N,)``."""

    z: Tensor
    sketch: Sketch
    own: Tensor

    def some(self, generator: torch.Generator) -> _Tokens:
        """Return a batch of them."""
        rows = torch.randint(len(self.z), (min(BATCH, len(self.z)),), generator=generator)
        return _Tokens(self.z[rows], self.sketch[rows], self.own[rows])


class CausalRouter(LinearRouter):
    """A linear router over tokens, robust in the residual form it answers with."""

    kind = "causal"
    reads_answers = True
    sketches = True

    def __init__(self, *, width: int, columns: tuple[str, ...], seed: int = 0) -> None:
        super().__init__(width=width, columns=columns, seed=seed)
        self.found: Robust | None = None

    def finish(
        self,
        columns: Sequence[ColumnData],
        *,
        steps: int,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Play the game from nothing over the columns with tokens; `found` says how it ended."""
        fit = [(k, d.z, d.sketch) for k, d in enumerate(columns)]
        aside = [(k, g.z, g.sketch) for k, d in enumerate(columns) if (g := d.gate) is not None]
        rows = _tokens(fit)
        if len(rows) < 2:  # noqa: PLR2004  (there is no mixture to be robust against)
            return
        with torch.no_grad():
            for p in self.parameters():
                p.zero_()
        names = [d.column for d in columns if d.sketch is not None]
        played = self._play(
            rows,
            _tokens(aside) or rows,
            [d.z for d in columns if d.sketch is None],
            steps,
            progress,
        )
        self.found = told(names, played)

    def _play(
        self,
        rows: Sequence[_Tokens],
        aside: Sequence[_Tokens],
        others: Sequence[Tensor],
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
                steps=ROUNDS * steps, learning_rate=2e-3, weight_decay=0.1, every=25
            ),
            elsewhere=lambda: self._elsewhere(others, generator),
            progress=progress,
        )

    def _regrets(self, rows: Sequence[_Tokens]) -> Tensor:
        """Return the loss less that of the own expert on the same tokens, by domain, ``(K,)``."""
        return torch.stack(
            [(r.own - r.sketch.log_p(torch.softmax(self(r.z), dim=-1))).mean() for r in rows]
        )

    def _elsewhere(self, others: Sequence[Tensor], generator: torch.Generator) -> Tensor:
        """Return the loss that keeps the backbone's column to some of its rows."""
        total = self.bias.new_zeros(())
        for z in others:
            rows = torch.randint(len(z), (min(BATCH, len(z)),), generator=generator)
            mass = torch.log_softmax(self(z[rows]), dim=-1)[:, -1]
            total = total - mass.mean() / len(self.columns)
        return total


def _tokens(told: Sequence[tuple[int, Tensor, Sketch | None]]) -> list[_Tokens]:
    return [_Tokens(z, s, s.alone()[:, k]) for k, z, s in told if s is not None]
