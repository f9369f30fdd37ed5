"""The robust router: the smallest worst regret over domains, for any traffic mix (seed 002).

    min over θ of max over λ in the simplex of Σ_k λ_k (ℓ_k(θ) − ref_k)
    ℓ_k = −mean over rows of domain k of log Σ_j g_j(z) p_j(y|x)

The p_j are frozen, so log p_j(y|x) is computed once. ref_k is expert k's own loss on its own
domain. The game is played twice, from the ordinary linear router and from zero, because with few
rows a trained classifier is too confident to be moved. The weights with the smaller worst regret on
held-out rows are kept (`redhost_robust.minimax`). It answers with the mixture it was trained for.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from redhost.core.bus.signals import ANSWERS
from redhost.core.receipt import MinimaxReport
from redhost.core.routers.base import AnswerLikelihoods, ColumnData
from redhost.core.routers.linear import LinearRouter
from redhost.core.types import Progress

from ..descent_ascent import MinimaxResult, MinimaxSettings, minimax, mixture_losses

BATCH = 128
ROUNDS = 10
"""Steps of the game for each step of the ordinary training: a saddle point takes longer."""


class RobustRouter(LinearRouter):
    """A linear router trained for the worst mixture of its domains."""

    kind = "robust"
    reads = frozenset({ANSWERS})
    output = "mixture"

    def fine_tune(
        self,
        columns: Sequence[ColumnData],
        *,
        steps: int,
        progress: Progress | None = None,
    ) -> None:
        """Play the game over the columns with known answers, and set `minimax_report`."""
        known = [(k, d, p) for k, d in enumerate(columns) if (p := d.likelihood) is not None]
        if len(known) < 2:  # noqa: PLR2004  (one domain has no mixtures)
            return
        rows = [AnswerLikelihoods(z=d.z, likelihood=p) for _, d, p in known]
        aside = [_logged(d.gate or r) for (_, d, _), r in zip(known, rows, strict=True)]
        own = zip([k for k, _, _ in known], aside, strict=True)
        play = partial(
            self._play,
            rows=rows,
            aside=aside,
            others=[(k, d.z) for k, d in enumerate(columns) if d.likelihood is None],
            reference=torch.stack([-p[:, k].mean() for k, (_, p) in own]),
            steps=ROUNDS * steps,
        )
        played = from_two_starts(self, partial(play, progress=progress))
        self.minimax_report = minimax_report([d.column for _, d, _ in known], played)

    def _play(
        self,
        *,
        rows: Sequence[AnswerLikelihoods],
        aside: Sequence[tuple[Tensor, Tensor]],
        others: Sequence[tuple[int, Tensor]],
        reference: Tensor,
        steps: int,
        progress: Progress | None,
    ) -> MinimaxResult:
        generator = torch.Generator().manual_seed(self.seed)
        return minimax(
            self,
            losses=lambda: mixture_losses(self, [_logged(_draw(r, generator)) for r in rows]),
            aside=lambda: mixture_losses(self, aside),
            reference=reference,
            settings=MinimaxSettings(steps=steps),
            elsewhere=lambda: self._elsewhere(others),
            progress=progress,
        )

    def _elsewhere(self, others: Sequence[tuple[int, Tensor]]) -> Tensor:
        """Return the loss that teaches columns without answers, as the backbone's, their rows."""
        total = self.bias.new_zeros(())
        for k, z in others:
            mass = torch.softmax(self(z), dim=-1)[:, k]
            total = total - mass.clamp_min(1e-12).log().mean() / len(self.columns)
        return total


def from_two_starts(router: nn.Module, play: Callable[[], MinimaxResult]) -> MinimaxResult:
    """Play from a router's weights and from zero; keep those with the smaller worst regret."""
    played = play()
    ordinary = copy.deepcopy(router.state_dict())
    with torch.no_grad():
        for p in router.parameters():
            p.zero_()
    fresh = play()
    if fresh.regrets.max() < played.regrets.max():
        return fresh
    router.load_state_dict(ordinary)
    return played


def minimax_report(names: Sequence[str], played: MinimaxResult) -> MinimaxReport:
    """Return the part of a receipt that describes a game over domains."""
    worst = int(played.regrets.argmax())
    return MinimaxReport(
        mixture=dict(zip(names, played.weights.tolist(), strict=True)),
        regrets=dict(zip(names, played.regrets.tolist(), strict=True)),
        worst=names[worst],
        regret=float(played.regrets[worst]),
        gap=float(played.regrets[worst] - (played.weights * played.regrets).sum()),
    )


def _draw(rows: AnswerLikelihoods, generator: torch.Generator) -> AnswerLikelihoods:
    index = torch.randint(len(rows.z), (min(BATCH, len(rows.z)),), generator=generator)
    return AnswerLikelihoods(z=rows.z[index], likelihood=rows.likelihood[index])


def _logged(rows: AnswerLikelihoods) -> tuple[Tensor, Tensor]:
    return rows.z, rows.likelihood.clamp_min(1e-12).log()
