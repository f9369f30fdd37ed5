"""The seed's three propositions, corrected, each as numbers that could falsify it.

1.  If x̃ = (x₁, x₂, 1) has full column rank on D_i and targets carry no noise, the linear
    least-squares fit on D_i is (½, ½, 0), the same for every i. Without either condition it is not.
2.  (False as written: one network can represent y exactly, and is then a minimiser on every D_i.)
    An identity holds instead: with e_k = f_k − y, the uniform mixture's error on D_i is
    e_i/K + Σ_{k≠i} e_k/K, and training controls e_k on D_k only.
3.  If |base − y| ≤ δ and |r_i| ≤ ε everywhere, |base + Σ α_i r_i − y| ≤ δ + ε Σ|α_i|: not ε, also
    where Σ α_i = 1.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from red_lab.toy.data import SEGMENTS, UNITS, grid, oracle
from red_lab.toy.linear import TRUE, design, least_squares
from red_lab.toy.mlp import LAYERS, Stack, forward
from red_lab.toy.nonlinear import outputs
from red_lab.toy.residual import BOUNDS, Residuals

__all__ = [
    "OPPOSED",
    "bound",
    "first",
    "mixing_weights",
    "opposed",
    "represented",
    "second",
    "third",
]

E = len(SEGMENTS)
NOISE = 1.0
"""Standard deviation of the target noise with which Proposition 1 fails, in units of the sum."""

SMALL = 1e-9
OPPOSED = (2.0, -1.0)
"""Weights that sum to 1 with Σ|α| = 3."""


def first(seed: int) -> dict[str, float]:
    """Return Proposition 1's numbers: fits in float64, errors over the whole grid."""
    home, true = grid().home, torch.tensor(TRUE, dtype=torch.float64)
    rows, y = design(home), grid().y[home]
    generator = torch.Generator().manual_seed(seed)
    noise = NOISE / UNITS * torch.randn(y.shape, generator=generator, dtype=torch.float64)
    noisy = least_squares(rows, y + noise)
    middle = grid().x[home][..., 1] == grid().x[home][:, 190:191, 1]  # b at one value: a line
    line = rows[middle].reshape(E, -1, 3)
    lines = least_squares(line, y[middle].reshape(E, -1))
    everywhere = design(torch.arange(len(grid().y)))
    return {
        "rank": float(torch.linalg.matrix_rank(rows).min()),
        "apart": _largest(least_squares(rows, y) - true),
        "noisy apart": _largest(noisy[:, None] - noisy[None]),
        "noisy error": UNITS * _largest(noisy @ everywhere.T - grid().y),
        "line rank": float(torch.linalg.matrix_rank(line).max()),
        "line fit": UNITS * _largest((line @ lines[..., None])[..., 0] - y[middle].reshape(E, -1)),
        "line error": UNITS * _largest(lines @ everywhere.T - grid().y),
    }


def second(stack: Stack) -> dict[str, float]:
    """Return the numbers of Proposition 2's identity, in units of the sum.

    Args:
        stack: Five networks, each trained on its segment.
    """
    answers = outputs(stack)
    errors, inside = answers - grid().y, grid().inside
    own = oracle(errors) / E
    others = errors.sum(0) / E - own
    mixture = answers.mean(0) - grid().y
    return {
        "identity": UNITS * _largest((mixture - own - others)[inside]),
        "own": UNITS * float(own[inside].abs().mean()),
        "others": UNITS * float(others[inside].abs().mean()),
        "mixture": UNITS * float(mixture[inside].abs().mean()),
    }


def represented() -> Stack:
    """Return a network 2-64-64-1 that is y exactly: two units carry x through both layers."""
    shapes = [(rows, out) for wide, out in LAYERS for rows in (wide, 1)]
    stack = [torch.zeros(1, rows, out) for rows, out in shapes]
    for n in (0, 1):
        stack[0][0, n, n] = stack[2][0, n, n] = 1.0
        stack[4][0, n, 0] = 0.5
    return stack


def mixing_weights(seed: int, *, draws: int) -> Tensor:
    """Return weights to try, ``(A, E)``: corners, uniform, (2, −1) on every pair, and drawn ones.

    Half of the drawn ones are shifted to sum to 1, as in the seed; signs are free.
    """
    generator = torch.Generator().manual_seed(seed)
    eye = torch.eye(E, dtype=torch.float64)
    pairs = [
        OPPOSED[0] * eye[i] + OPPOSED[1] * eye[j] for i in range(E) for j in range(E) if i != j
    ]
    drawn = torch.randn(draws, E, generator=generator, dtype=torch.float64)
    half = drawn[: draws // 2]
    signed = half + (1 - half.sum(1, keepdim=True)) / E
    return torch.cat(
        [eye, eye.mean(0, keepdim=True), torch.stack(pairs), signed, drawn[len(half) :]]
    )


def bound(own: Residuals, alpha: Tensor, *, epsilon: float) -> Tensor:
    """Return δ + ε Σ|α_i| for weights ``(A, E)``, ``(A,)``."""
    return _largest(own.base - grid().y) + epsilon * alpha.abs().sum(1)


def third(seed: int, residuals: Mapping[str, Residuals], *, draws: int = 400) -> dict[str, float]:
    """Return Proposition 3's numbers, lengths in units of the sum.

    Args:
        seed: Of the weights drawn.
        residuals: Trained experts by form and base.
        draws: How many weights are drawn.
    """
    alpha = mixing_weights(seed, draws=draws)
    convex = (alpha.sum(1) - 1).abs() < SMALL
    found = {"weights": float(len(alpha))}
    for name, epsilon in BOUNDS.items():
        own = residuals[f"bounded, {name}"]
        worst = (alpha @ own.parts + own.base - grid().y).abs().amax(1)  # (A,)
        found[f"{name} delta"] = UNITS * _largest(own.base - grid().y)
        found[f"{name} epsilon"] = UNITS * epsilon
        found[f"{name} of bound"] = float((worst / bound(own, alpha, epsilon=epsilon)).max())
        found[f"{name} of epsilon"] = float(worst[convex].max()) / epsilon
    home, away = residuals["scaled, exact"].largest()
    return {**found, "opposed": opposed(), "home": UNITS * home, "away": UNITS * away}


def opposed() -> float:
    """Return |2 r₁ − r₂| / ε for bounded experts that are +ε and −ε: it is 3."""
    flat = represented()
    flat[-2] = torch.zeros_like(flat[-2])
    high, low = (
        torch.tanh(forward([*flat[:-1], torch.full((1, 1, 1), end)], grid().inputs))
        for end in (20.0, -20.0)
    )
    return _largest(OPPOSED[0] * high + OPPOSED[1] * low)


def _largest(values: Tensor) -> float:
    return float(values.abs().max())
