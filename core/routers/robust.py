"""The robust router: the smallest worst regret over domains, whatever the traffic (seed 002).

    min over θ of max over λ in the simplex of Σ_k λ_k (ℓ_k(θ) − ref_k)
    ℓ_k = −mean over rows of domain k of log Σ_j g_j(z) p_j(y|x)

p_j are frozen, so log p_j(y|x) is computed once. ref_k is expert k's own loss on its own domain,
without which a hard domain would be taken for a badly served one. Every step takes rows of every
domain, descends Σ λ_k ℓ_k, and lets λ grow where the regret is (seed 002; MATH section 1, the
discriminative game). It starts from the ordinary linear router, and the weights with the smallest
worst regret on rows set aside are kept. It answers with the mixture it was trained for.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..receipt import Robust
from .base import ColumnData, Judged, Router
from .linear import LinearRouter

__all__ = ["RobustRouter", "losses", "move_lambda"]

BATCH = 128
RATE, RATE_LAMBDA = 5e-3, 0.05
SMOOTHING = 0.9
"""Of the regrets that move λ."""
FLOOR = 0.01
"""Share of λ that is spread evenly, so that no domain is forgotten."""
EVERY = 10
"""Steps between two looks at the rows set aside."""
ROUNDS = 10
"""Steps of the game for every step of the ordinary training: a saddle point takes longer."""


class RobustRouter(LinearRouter):
    """A linear router trained for the worst mixture of its domains."""

    kind = "robust"
    reads_answers = True
    output = "mixture"

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
        """Play the game over the columns whose answers are known; `found` says how it ended."""
        told = [(k, d) for k, d in enumerate(columns) if d.likelihood is not None]
        if len(told) < 2:  # noqa: PLR2004  (there is no mixture to be robust against)
            return
        rows = [Judged(z=d.z, likelihood=_known(d)) for _, d in told]
        aside = [d.gate or r for (_, d), r in zip(told, rows, strict=True)]
        own = torch.tensor([k for k, _ in told])
        reference = torch.stack([-_log(a)[:, k].mean() for k, a in zip(own, aside, strict=True)])
        others = [d.z for d in columns if d.likelihood is None]
        weights = self._play(
            rows, aside, reference, others, steps=ROUNDS * steps, progress=progress
        )
        with torch.no_grad():
            regrets = losses(self, aside) - reference
        self.found = _told([d.column for _, d in told], weights, regrets)

    def _play(
        self,
        rows: Sequence[Judged],
        aside: Sequence[Judged],
        reference: Tensor,
        others: Sequence[Tensor],
        *,
        steps: int,
        progress: Callable[[int, int], None] | None,
    ) -> Tensor:
        """Descend on the weights, ascend on λ; keep the best weights; return their λ."""
        generator = torch.Generator().manual_seed(self.seed)
        optimizer = torch.optim.AdamW(self.parameters(), lr=RATE, weight_decay=0.0)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
        count = len(rows)
        lam, regret = torch.full((count,), 1 / count), torch.zeros(count)
        best, best_regret, best_lam = self._kept(), self._worst_regret(aside, reference), lam
        for step in range(1, steps + 1):
            batch = [_draw(r, generator) for r in rows]
            loss = losses(self, batch)
            total = (lam * loss).sum() + self._elsewhere(others)
            optimizer.zero_grad()
            total.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            fresh = loss.detach() - reference
            regret = fresh if step == 1 else SMOOTHING * regret + (1 - SMOOTHING) * fresh
            lam = move_lambda(lam, regret)
            if step % EVERY == 0 or step == steps:
                found = self._worst_regret(aside, reference)
                if found < best_regret:
                    best, best_regret, best_lam = self._kept(), found, lam
            if progress is not None:
                progress(step, steps)
        self.load_state_dict(best)
        return best_lam

    def _elsewhere(self, others: Sequence[Tensor]) -> Tensor:
        """Return the loss that keeps the columns without answers, the backbone's, to their rows."""
        total = self.bias.new_zeros(())
        for z in others:
            mass = torch.softmax(self(z), dim=-1)[:, -1]
            total = total - mass.clamp_min(1e-12).log().mean() / len(self.columns)
        return total

    def _worst_regret(self, aside: Sequence[Judged], reference: Tensor) -> float:
        with torch.no_grad():
            return float((losses(self, aside) - reference).max())

    def _kept(self) -> dict[str, Tensor]:
        return copy.deepcopy(self.state_dict())


def losses(router: Router, rows: Sequence[Judged]) -> Tensor:
    """Return ℓ_k ``(K,)`` of rows of every domain: −mean log Σ_j g_j p_j, in nats."""
    return torch.stack(
        [
            -torch.logsumexp(torch.log_softmax(router(r.z), dim=-1) + _log(r), dim=-1).mean()
            for r in rows
        ]
    )


def move_lambda(weights: Tensor, regret: Tensor) -> Tensor:
    """Return λ after a multiplicative step along the regrets, floored: on the simplex."""
    moved = torch.softmax(weights.log() + RATE_LAMBDA * regret, dim=0)
    return (1 - FLOOR) * moved + FLOOR / len(moved)


def _told(names: Sequence[str], weights: Tensor, regrets: Tensor) -> Robust:
    worst = int(regrets.argmax())
    return Robust(
        mixture=dict(zip(names, weights.tolist(), strict=True)),
        regrets=dict(zip(names, regrets.tolist(), strict=True)),
        worst=names[worst],
        regret=float(regrets[worst]),
        gap=float(regrets[worst] - (weights * regrets).sum()),
    )


def _draw(rows: Judged, generator: torch.Generator) -> Judged:
    index = torch.randint(len(rows.z), (min(BATCH, len(rows.z)),), generator=generator)
    return Judged(z=rows.z[index], likelihood=rows.likelihood[index])


def _known(data: ColumnData) -> Tensor:
    assert data.likelihood is not None  # noqa: S101  (chosen by it)
    return data.likelihood


def _log(rows: Judged) -> Tensor:
    return rows.likelihood.clamp_min(1e-12).log()
