"""Stochastic primal-dual training of the robust gate, for alphabets that cannot be enumerated.

    θ ← Adam(Σ_k λ_k ℓ_k + (μ + ρ (Z₂ − 1)) Z₁),      ℓ_k = −E_{p_k} log Σ_j g_j π_j
    μ ← μ + η ((Z₁ + Z₂)/2 − 1)
    λ ∝ λ exp(η (ℓ_k − H_k)),  then (1 − e) λ + e/K

Z_g = Σ_j E_{x∼π_j}[g(x, j)] is unbiased; Z₁ and Z₂ come from independent batches, so that the
gradient of the penalty ½ρ(Z − 1)² is unbiased too. H_k, the domain's entropy or a reference loss,
must be subtracted: plain cross-entropy defines another game, won by the noisiest domain.

Source: seed 002 (arXiv 2602.17554), Stochastic Primal-Dual algorithm, and docs/departures.md, with
two changes, measured on random games (K ≤ 8, X ≤ 64). First, μ moves by the mean of both batches,
which costs nothing and halves the sampling variance of Z. Second, e is 1e-4: at 1e-3 a domain with
λ*_k = 0 keeps about e/(K η Δ) of λ, where Δ is its distance from the worst domain (a median of .006
nats above the exact value instead of .002).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .errors import GameError
from .source import Source

__all__ = [
    "PrimalDualSettings",
    "cross_entropies",
    "mixture_step",
    "normaliser_estimate",
    "primal_dual",
]


@dataclass(frozen=True, kw_only=True)
class PrimalDualSettings:
    """Hyperparameters of `primal_dual`.

    Attributes:
        rows: B, rows of every domain and of every expert in a step.
        steps: T.
        learning_rate: Adam's initial learning rate; it falls to 0 along a cosine.
        rate: η, the step size of μ and of λ.
        penalty: ρ.
        explore: e, the weight of the uniform mixture in λ.
        every: Steps between two samples of the gate for its average.

    Raises:
        GameError: If a number is outside its range.
    """

    rows: int = 64
    steps: int = 6000
    learning_rate: float = 0.03
    rate: float = 0.05
    penalty: float = 2.0
    explore: float = 1e-4
    every: int = 10

    def __post_init__(self) -> None:
        for name in ("rows", "steps", "every"):
            if getattr(self, name) < 1:
                raise GameError(name, expected="at least 1", found=f"{getattr(self, name)}")
        for name in ("learning_rate", "rate", "penalty"):
            if not 0 < getattr(self, name) < math.inf:
                raise GameError(name, expected="a number above 0", found=f"{getattr(self, name)}")
        if not 0 <= self.explore < 1:
            raise GameError("explore", expected="a number in [0, 1)", found=f"{self.explore}")


def cross_entropies(log_gate: Tensor, log_experts: Tensor) -> Tensor:
    """Return ℓ_k = −mean_b log Σ_j g(x,j) π_j(x), ``(K,)``, both given as logs ``(K, B, K')``."""
    return -(log_gate + log_experts).logsumexp(-1).mean(-1)


def normaliser_estimate(log_gate: Tensor) -> Tensor:
    """Return Σ_j mean_b g(x_jb, j), unbiased for Z_g where x_jb ∼ π_j, a scalar.

    Args:
        log_gate: log g at the experts' samples, ``(K', B, K')``.
    """
    return log_gate.exp().diagonal(dim1=0, dim2=2).mean(0).sum()


def mixture_step(lam: Tensor, regrets: Tensor, *, rate: float, explore: float) -> Tensor:
    """Return λ ∝ λ exp(η r), mixed with the uniform mixture at weight e, ``(K,)``."""
    grown = (lam.log() + rate * regrets).softmax(0)
    return (1 - explore) * grown + explore / len(lam)


def primal_dual(
    source: Source,
    gate: nn.Module,
    *,
    reference: Tensor,
    read: Callable[[], Tensor],
    settings: PrimalDualSettings | None = None,
) -> tuple[Tensor, Tensor]:
    """Train the gate in place against the worst mixture.

    The last iterate keeps circling the optimum. The gate therefore ends with the average of its
    parameters over the second half. For networks no theorem supports this, but it is as good as the
    average of the gates.

    Args:
        source: Rows of domains and experts.
        gate: x → logits ``(…, K')``.
        reference: H_k, or the loss that domain k is measured against, ``(K,)``, nats.
        read: Called in the second half; its results are averaged, e.g. the gate's table.
        settings: The hyperparameters.

    Returns:
        The averages of `read()` and of λ over the second half.
    """
    s = settings or PrimalDualSettings()
    parameters = list(gate.parameters())
    optimiser = torch.optim.Adam(parameters)  # every step sets its rate
    lam, mu = torch.full_like(reference, 1 / source.domains), 1.0
    means = _Means()
    for step in range(s.steps):
        optimiser.param_groups[0]["lr"] = s.learning_rate * _decay(step / s.steps)
        losses, z1, z2 = _estimates(source, gate, rows=s.rows)
        optimiser.zero_grad()
        (lam @ losses + (mu + s.penalty * (float(z2) - 1)) * z1).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        mu += s.rate * ((float(z1.detach()) + float(z2)) / 2 - 1)
        lam = mixture_step(lam, losses.detach() - reference, rate=s.rate, explore=s.explore)
        if (2 * step >= s.steps and step % s.every == 0) or step == s.steps - 1:
            with torch.no_grad():
                means.add([read(), lam, *parameters])
    mean, mean_lam, *averaged = means.values
    with torch.no_grad():
        for parameter, average in zip(parameters, averaged, strict=True):
            parameter.copy_(average)
    return mean, mean_lam


class _Means:
    """Running means of tensors."""

    def __init__(self) -> None:
        self._sums: list[Tensor] = []
        self._count = 0

    def add(self, now: Sequence[Tensor]) -> None:
        sums = self._sums or [torch.zeros_like(t) for t in now]
        self._sums = [total + t for total, t in zip(sums, now, strict=True)]
        self._count += 1

    @property
    def values(self) -> list[Tensor]:
        return [total / self._count for total in self._sums]


def _decay(done: float) -> float:
    """Return the factor of the learning rate after a fraction `done` of the steps."""
    return (1 + math.cos(math.pi * done)) / 2


def _estimates(source: Source, gate: nn.Module, *, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return ℓ ``(K,)`` and two independent estimates of Z, from a single call of the gate."""
    inputs, log_experts = source.domain_batch(rows)
    first, second = source.expert_batch(rows), source.expert_batch(rows)
    log_gate = gate(torch.cat([inputs, first, second])).log_softmax(-1)
    sizes = [source.domains, source.experts, source.experts]
    on_domains, on_first, on_second = log_gate.split(sizes)
    return (
        cross_entropies(on_domains, log_experts),
        normaliser_estimate(on_first),
        normaliser_estimate(on_second.detach()),
    )
