"""Every router of the study, over the same frozen experts and the same traffic.

average     minimises the loss over the traffic: λ = the domains' frequencies
balanced    minimises the loss with equal weight for every domain: λ = 1/K
robust      minimises the worst regret: λ moves

All three start at zero, take the same steps, and keep the step that is best on gate rows by their
own criterion. (Starting from a trained classifier of the domains, as the host does, is worse for
all three if rows are few, since it is overconfident from the start; `docs/lab-notes.md`.) The
robust one is also measured by the number of training rows, and by its size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from redhost_robust import MinimaxResult, MinimaxSettings, distil_gate, minimax, mixture_losses
from torch import Tensor, nn

from red_lab.robust.traffic import RouterRows, UnevenTraffic

__all__ = [
    "AGAIN",
    "ROWS",
    "SETTINGS",
    "UNITS",
    "centroid_gate",
    "distilled",
    "growth",
    "linear_gate",
    "mlp_gate",
    "train_gate",
]

SETTINGS = MinimaxSettings(steps=1500, learning_rate=2e-3, weight_decay=0.1)
AGAIN = replace(SETTINGS, learning_rate=2e-4, every=1)
"""For a student that is already distilled: small steps, each of them evaluated."""
BATCH = 128
HIDDEN = 64
DOUBLINGS = 8


class CentroidGate(nn.Module):
    """logits = (z·m_k − ‖m_k‖²/2) / τ, initialised at the domains' means.

    Args:
        means: m ``(K, D)``.
        spread: τ.
    """

    def __init__(self, means: Tensor, *, spread: float) -> None:
        super().__init__()
        self.means = nn.Parameter(means.clone())
        self.log_spread = nn.Parameter(torch.tensor(spread).log())

    def forward(self, z: Tensor) -> Tensor:
        """Return logits ``(B, K)`` for z ``(B, D)``."""
        score: Tensor = z @ self.means.T - 0.5 * self.means.square().sum(-1)
        return score / self.log_spread.exp()


def linear_gate(traffic: UnevenTraffic) -> nn.Module:
    """Return a linear gate initialised at zero."""
    gate = nn.Linear(traffic.problem.width, len(traffic.experts))
    nn.init.zeros_(gate.weight)
    nn.init.zeros_(gate.bias)
    return gate


def mlp_gate(traffic: UnevenTraffic, *, hidden: int = HIDDEN, seed: int = 0) -> nn.Module:
    """Return a gate with one hidden layer, its output layer initialised at zero."""
    width, count = traffic.problem.width, len(traffic.experts)
    inner, outer = nn.Linear(width, hidden), nn.Linear(hidden, count)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        inner.weight.copy_(torch.randn(hidden, width, generator=generator) * (2 / width) ** 0.5)
        for p in (inner.bias, outer.weight, outer.bias):
            p.zero_()
    return nn.Sequential(inner, nn.ReLU(), outer)


def train_gate(
    gate: nn.Module,
    traffic: UnevenTraffic,
    rows: Sequence[RouterRows],
    *,
    start: Tensor,
    moves: bool,
    seed: int,
    settings: MinimaxSettings = SETTINGS,
) -> MinimaxResult:
    """Train a gate in place.

    Args:
        gate: z → logits.
        traffic: The experts, the gate rows and the reference losses.
        rows: The training rows by domain.
        start: The initial λ ``(K,)``.
        moves: Whether λ moves to domains with large regret.
        seed: Random seed of the batches.
        settings: Settings of the game.
    """
    aside = traffic.router_rows(traffic.by_domain(traffic.problem.valid))
    generator = torch.Generator().manual_seed(seed)
    return minimax(
        gate,
        losses=lambda: mixture_losses(gate, [_draw(r, generator) for r in rows]),
        aside=lambda: mixture_losses(gate, aside),
        reference=traffic.reference,
        settings=settings if moves else replace(settings, rate_lambda=0.0),
        start=start,
    )


def distilled(
    make: Callable[[UnevenTraffic, Sequence[RouterRows]], nn.Module],
    teacher: nn.Module,
    traffic: UnevenTraffic,
    rows: Sequence[RouterRows],
    *,
    weights: Tensor,
) -> nn.Module:
    """Return a student trained on a gate's posterior over experts."""
    student = make(traffic, rows)
    aside = traffic.router_rows(traffic.by_domain(traffic.problem.valid))
    distil_gate(student, teacher=teacher, rows=rows, aside=aside, weights=weights)
    return student


def centroid_gate(traffic: UnevenTraffic, rows: Sequence[RouterRows]) -> nn.Module:
    """Return the nearest-centroid gate of the rows, with the τ that is best on gate rows."""
    means = torch.stack([z.mean(0) for z, _ in rows])
    apart = [float((z - m).square().sum(-1).mean()) for (z, _), m in zip(rows, means, strict=True)]
    spread = max(sum(apart) / len(apart) / traffic.problem.width, 1e-6)
    aside = traffic.router_rows(traffic.by_domain(traffic.problem.valid))
    gates = [CentroidGate(means, spread=spread * 2**n) for n in range(DOUBLINGS)]
    with torch.no_grad():
        return min(gates, key=lambda gate: float(mixture_losses(gate, aside).mean()))


def _draw(rows: RouterRows, generator: torch.Generator) -> RouterRows:
    z, log_p = rows
    index = torch.randint(len(z), (min(BATCH, len(z)),), generator=generator)
    return z[index], log_p[index]


ROWS = (10, 30, 100, 300, 1000)
"""Rows of each domain."""

UNITS = (0, 8, 64, 512)
"""Units of the hidden layer; 0 is the linear gate."""

MIDDLE = 100


def growth(traffic: UnevenTraffic, *, seed: int) -> dict[str, list[dict[str, Any]]]:
    """Return worst regrets on training rows and on test rows, for both curves."""
    most = min(map(len, traffic.even))
    sizes = [n for n in ROWS if n <= most]
    return {
        "rows": [_point(traffic, rows=n, units=0, seed=seed) for n in sizes],
        "units": [_point(traffic, rows=min(MIDDLE, most), units=u, seed=seed) for u in UNITS],
    }


def _point(traffic: UnevenTraffic, *, rows: int, units: int, seed: int) -> dict[str, Any]:
    parts = [p.some(rows, seed=seed) for p in traffic.even]
    learnt = traffic.router_rows(parts)
    gate: nn.Module
    gate = mlp_gate(traffic, hidden=units, seed=seed) if units else linear_gate(traffic)
    count = len(parts)
    train_gate(gate, traffic, learnt, start=torch.full((count,), 1 / count), moves=True, seed=seed)
    tests = traffic.router_rows(traffic.by_domain(traffic.problem.test))
    regrets = {}
    for name, part_rows in (("train", learnt), ("test", tests)):
        own = torch.stack([-log_p[:, k].mean() for k, (_, log_p) in enumerate(part_rows)])
        with torch.no_grad():
            regrets[name] = float((mixture_losses(gate, part_rows) - own).max())
    return {"rows": rows, "units": units, **regrets}
