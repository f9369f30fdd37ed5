"""Structural distillation: from a gate that sees the whole of x to a causal one that sees x_<t.

    teacher   P(k, x) = g(x,k) π_k(x), a joint law when Z_g = 1;    r_k(x) = g(x,k) π_k(x) / π_g(x)
    student   π_γ(x) = Π_t Σ_k γ(k | x_<t) π_k(x_t | x_<t)
    γ*(k | x_<t) = P(k | x_<t) = E[r_k | x_<t]

γ* minimises −Σ_t Σ_k r_k log γ_k. A constant gate w gives γ* ∝ w_k π_k(x_<t), and then π_γ = π_w
exactly. Any other gate leaves a gap KL(π_g ‖ π_γ), which has to be reported. Distillation voids the
minimax guarantee: measure the student's worst domain again (`worst_kl`).

Source: seed 002 (arXiv 2602.17554), Structural Distillation; docs/departures.md.
"""

from __future__ import annotations

import numpy as np

from .divergences import kl
from .errors import GameError
from .gates import model_of_gate
from .probability import Array, probability_vector
from .sequences import Sequences

__all__ = [
    "causal_gate",
    "constant_causal_gate",
    "distillation_gap",
    "responsibilities",
    "student_model",
]


def responsibilities(gate: Array, experts: Array) -> Array:
    """Return r_k(x) = g(x,k) π_k(x) / π_g(x), ``(X, K)``; g itself where π_g is 0.

    Args:
        gate: g, ``(X, K)``, rows in the simplex.
        experts: π_k, ``(K, X)``.

    Raises:
        GameError: If the two have different shapes.
    """
    model = model_of_gate(gate, experts)[:, None]
    return np.asarray(np.where(model > 0, gate * experts.T / np.where(model > 0, model, 1.0), gate))


def causal_gate(gate: Array, experts: Array, sequences: Sequences) -> Array:
    """Return γ*(k | x_<t) = P(k | x_<t), ``(T, X, K)``, rows in the simplex.

    Args:
        gate: The teacher's g, ``(X, K)``, rows in the simplex.
        experts: π_k over all paths, ``(K, X)``.
        sequences: The enumeration of the paths.

    Returns:
        γ*; uniform after a prefix that the teacher cannot emit.

    Raises:
        GameError: If the shapes do not fit.
    """
    if gate.shape != experts.shape[::-1]:
        raise GameError("gate", expected=f"shape {experts.shape[::-1]}", found=f"{gate.shape}")
    joint = sequences.prefix_masses(gate.T * experts)[:, :-1]  # (K, T, X)
    total = joint.sum(axis=0)
    shares = np.where(total > 0, joint / np.where(total > 0, total, 1.0), 1 / len(experts))
    return np.ascontiguousarray(shares.transpose(1, 2, 0))


def constant_causal_gate(weights: Array, experts: Array, sequences: Sequences) -> Array:
    """Return γ(k | x_<t) ∝ w_k π_k(x_<t), ``(T, X, K)``: the exact student of a constant gate.

    Args:
        weights: w, ``(K,)``, in the simplex.
        experts: π_k over all paths, ``(K, X)``.
        sequences: The enumeration of the paths.

    Raises:
        GameError: If the weights are not in the experts' simplex.
    """
    w = probability_vector("weights", weights)
    if len(w) != len(experts):
        raise GameError("weights", expected=f"{len(experts)} of them", found=f"{len(w)}")
    return causal_gate(np.tile(w, (experts.shape[1], 1)), experts, sequences)


def student_model(causal: Array, experts: Array, sequences: Sequences) -> Array:
    """Return π_γ(x) = Π_t Σ_k γ(k | x_<t) π_k(x_t | x_<t), ``(X,)``.

    Args:
        causal: γ, ``(T, X, K)``.
        experts: π_k over all paths, ``(K, X)``.
        sequences: The enumeration of the paths.
    """
    return np.asarray(
        np.einsum("txk,ktx->tx", causal, sequences.conditionals(experts)).prod(axis=0)
    )


def distillation_gap(gate: Array, causal: Array, experts: Array, sequences: Sequences) -> float:
    """Return KL(π_g ‖ π_γ), nats: the student's loss from not seeing the rest of the sequence.

    Args:
        gate: The teacher's g, ``(X, K)``, with Z_g = 1.
        causal: The student's γ, ``(T, X, K)``.
        experts: π_k over all paths, ``(K, X)``.
        sequences: The enumeration of the paths.
    """
    teacher = model_of_gate(gate, experts)
    return float(kl(teacher[None], student_model(causal, experts, sequences))[0])
