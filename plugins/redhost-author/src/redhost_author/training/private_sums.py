"""Differentially private sums: the Gaussian mechanism over a card of statistics.

One row (y, z), ‖z‖ ≤ C by clipping, adds (w e_y, √(1 − w²) z / C), a vector of length 1 at most, to
v = (w n, √(1 − w²) s / C). So v + σ N(0, I) is (ε, δ)-differentially private under adding or
removing a row, with the smallest σ for which

    Φ(1 / 2σ − ε σ) − e^ε Φ(−1 / 2σ − ε σ) ≤ δ             Balle and Wang 2018, theorem 8

Later steps use only noisy v and public texts, so they disclose nothing more. Means are shrunk
towards their common mean according to their noise (James and Stein 1961). Σ z zᵀ is not released,
because under the noise it needs, no direction of real rows stands out (docs/lab-notes.md). Its
part between the means follows from them; the rest is assumed to have the covariance of the
backbone's background texts. ν N on its diagonal, ν = `FLAT`, regularises against noise in the
means, since a host without rows cannot choose such a penalty:

    S = Σ_y n_y μ_y μ_yᵀ + (N C² − Σ_y n_y ‖μ_y‖²) Σ_public / tr Σ_public + ν N I
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from redhost.core.routers.domain_statistics import Statistics, within_covariance
from redhost.registry.package.manifest import Noise

COUNTS = 0.05
"""w²: the share of the budget that is used for counts; the rest is used for sums."""

FLAT = 1.0
"""ν. Share of rows routed to their own expert, for ν = 1/30 and ν = 3: .41 and .78 at ε = 1, .88
and .91 at ε = 10 (validation rows of 20 Newsgroups)."""

LEAST = 0.05
"""Smallest share of the trace for the covariance within labels, however noisy the means."""


def gaussian_scale(epsilon: float, delta: float) -> float:
    """Return the smallest σ for a vector that one row changes by 1 at most (see the module).

    Args:
        epsilon: ε, above 0, 100 at most.
        delta: δ, between 0 and 1.
    """

    def excess(sigma: float) -> float:
        a, b = 1 / (2 * sigma), epsilon * sigma
        return _normal(a - b) - math.exp(epsilon) * _normal(-a - b) - delta

    low, high = 1e-3, 1.0
    while excess(high) > 0:
        low, high = high, 2 * high
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return high


def _normal(x: float) -> float:
    """Return Φ(x), to full precision in its lower tail."""
    return math.erfc(-x / math.sqrt(2)) / 2


def private_sums(
    z: Tensor,
    labels: Sequence[str],
    noise: Noise,
    *,
    public: Tensor | None,
    generator: np.random.Generator,
) -> Statistics:
    """Return sums of rows with noise.

    Args:
        z: Bus vectors ``(N, D)``.
        labels: Their labels.
        noise: ε, δ and C.
        public: Bus vectors of public texts ``(P, D)``; without any, the covariance is isotropic.
        generator: The source of noise, see `fresh_generator`.
    """
    exact_sums = Statistics.of_rows(_clipped(z.double(), noise.clip), labels)
    sigma = gaussian_scale(noise.epsilon, noise.delta)
    of_counts, of_sums = sigma / math.sqrt(COUNTS), noise.clip * sigma / math.sqrt(1 - COUNTS)

    def noisy(exact: Tensor, scale: float) -> Tensor:
        return exact + scale * torch.from_numpy(generator.standard_normal(exact.shape))

    counts = noisy(exact_sums.counts, of_counts).round().clamp(min=1.0)
    sums = noisy(exact_sums.sums, of_sums)
    means = _shrunk(sums / counts[:, None], sums.sum(0) / counts.sum(), of_sums / counts)
    means = _clipped(means, noise.clip)
    sums = means * counts[:, None]
    scatter, rows = means.T @ sums, float(counts.sum())
    trace = rows * noise.clip**2
    left = max(trace - float(scatter.trace()), LEAST * trace)
    within = torch.eye(z.shape[1], dtype=torch.float64)
    if public is not None:
        within = within_covariance([Statistics.of_rows(public, [""] * len(public))])
    scatter = scatter + left / float(within.trace()) * within
    scatter.diagonal().add_(FLAT * rows)
    return Statistics(labels=exact_sums.labels, counts=counts, sums=sums, scatter=scatter)


def _clipped(z: Tensor, clip: float) -> Tensor:
    """Return rows ``(N, D)`` whose lengths are clipped to C."""
    length = torch.linalg.vector_norm(z, dim=-1, keepdim=True).clamp(min=1e-12)
    cut: Tensor = z * (clip / length).clamp(max=1.0)
    return cut


def _shrunk(means: Tensor, common: Tensor, noise: Tensor) -> Tensor:
    """Return means ``(Y, D)``, shrunk towards a common one ``(D,)``.

        m + max(0, 1 − (D − 2) τ_y² / ‖μ_y − m‖²) (μ_y − m)

    Args:
        means: μ_y.
        common: m.
        noise: τ_y, the standard deviation of each number of μ_y, ``(Y,)``.
    """
    off = means - common
    square = off.square().sum(-1, keepdim=True).clamp(min=1e-12)
    factor = 1 - (means.shape[1] - 2) * noise[:, None].square() / square
    shrunk: Tensor = common + factor.clamp(min=0.0) * off
    return shrunk


def fresh_generator() -> np.random.Generator:
    """Return a generator with a secret seed: with a known seed, the noise could be subtracted."""
    return np.random.default_rng(secrets.randbits(256))
