"""A generalisation bound of a trained gate that depends on the gate alone.

Let G(W) = L(0) − L(W), with ℓ_W = −log Σ_j g_j p_j(y|x), be the gain over the uniform gate. For all
linear gates g = softmax(W z) with ‖W‖_F ≤ Λ at once, and rows with ‖z‖ ≤ ζ, the gain on the n
training rows exceeds the gain on new rows by at most

    Ĝ(W) − G(W) ≤ 4 Λ ζ √K / √n + 2 √2 Λ ζ √(log(1/δ) / (2 n))      with probability 1 − δ.

The bound depends neither on the experts' parameters nor on their probabilities: it grows with the
gate alone.

Why: ∂ℓ/∂s = g − r with r the posterior over experts, so ℓ is √2-Lipschitz in the logits s for any
expert outputs. A vector contraction (Maurer 2016, arXiv 1605.00251, Corollary 1) turns that into
2 Λ/n · E‖Σ_i ε_i z_iᵀ‖ ≤ 2 Λ ζ √(K/n) for the Rademacher average of ℓ; symmetrisation doubles it.
Replacing a row changes the largest difference by at most 2 √2 Λ ζ / n: McDiarmid's inequality gives
the second term (Mohri, Rostamizadeh, Talwalkar 2018, Theorem 3.3). A norm that is known only after
training is rounded up to 2^m / ζ, and level m gets δ / ((m + 1)(m + 2)).

Source: seed 002 (arXiv 2602.17554) claims bounds that scale with the gate's complexity. Its
abstract states none, so this bound is derived for this project.
"""

from __future__ import annotations

import math

from .errors import GameError

__all__ = ["gate_gap_bound"]


def gate_gap_bound(
    *, norm: float, radius: float, columns: int, rows: int, delta: float = 0.05
) -> float:
    """Return an upper bound on a gate's gain on its training rows minus that on new rows, nats.

    For a bias, let z end in 1. For the worst of several domains, pass the rows of the domain and δ
    divided by the number of domains.

    Args:
        norm: ‖W‖_F after training.
        radius: ζ, known before training: √D for z = LayerNorm(h), √(D + 1) with a bias.
        columns: K.
        rows: n.
        delta: δ in (0, 1).

    Raises:
        GameError: If a number is out of its range.
    """
    _check("norm", norm, norm >= 0, "0 or more")
    _check("radius", radius, radius > 0, "more than 0")
    _check("columns", columns, columns >= 1, "1 or more")
    _check("rows", rows, rows >= 1, "1 or more")
    _check("delta", delta, 0 < delta < 1, "a number between 0 and 1")
    level = max(0, math.ceil(math.log2(norm * radius))) if norm else 0
    span = 2.0**level  # Λ ζ
    share = delta / ((level + 1) * (level + 2))
    average = 4 * span * math.sqrt(columns / rows)
    return average + 2 * math.sqrt(2) * span * math.sqrt(math.log(1 / share) / (2 * rows))


def _check(name: str, value: float, fits: bool, expected: str) -> None:
    if not (fits and math.isfinite(value)):
        raise GameError(name, expected=expected, found=f"{value}")
