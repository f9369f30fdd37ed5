"""How much better a trained gate can look on its rows than it is: a bound by the gate alone.

For all linear gates g = softmax(W z) with ‖W‖_F ≤ Λ at once, and rows with ‖z‖ ≤ ζ, the gain over
the uniform gate, G(W) = L(0) − L(W) with ℓ_W = −log Σ_j g_j p_j(y|x), is on n rows more than on new
ones by at most

    Ĝ(W) − G(W) ≤ 4 Λ ζ √K / √n + 2 √2 Λ ζ √(log(1/δ) / (2 n))      with probability 1 − δ.

Neither the experts' parameters nor their probabilities stand in it: what grows is the gate's.

Why: ∂ℓ/∂s = g − r with r the posterior over experts, so ℓ is √2-Lipschitz in the logits s, whatever
the experts say. A vector contraction (Maurer 2016, arXiv 1605.00251, Corollary 1) turns that into
2 Λ/n · E‖Σ_i ε_i z_iᵀ‖ ≤ 2 Λ ζ √(K/n) for the Rademacher average of ℓ; symmetrisation doubles it.
A row replaced moves the largest difference by 2 √2 Λ ζ / n at most: McDiarmid's inequality gives
the second term (Mohri, Rostamizadeh, Talwalkar 2018, Theorem 3.3). A norm that is known only after
training is rounded up to 2^m / ζ, and level m gets δ / ((m + 1)(m + 2)).

Source: seed 002 (arXiv 2602.17554) claims bounds that scale with the gate's complexity; its
abstract gives none, so this one is ours.
"""

from __future__ import annotations

import math

from .errors import GameError

__all__ = ["gate_gap_bound"]


def gate_gap_bound(
    *, norm: float, radius: float, columns: int, rows: int, delta: float = 0.05
) -> float:
    """Return how much more a gate gains on its rows than on new ones, at most, nats.

    For a bias, let z end in 1. For the worst of several domains, pass the rows of the domain and δ
    divided by the number of domains.

    Args:
        norm: ‖W‖_F after training.
        radius: ζ, known before: √D for z = LayerNorm(h), √(D + 1) with a bias.
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
