"""Normalised gates G1, and the set of models that they can express.

    Z_g = Σ_x Σ_j g(x,j) π_j(x),     G1 = {g : Z_g = 1}
    {π_g : g ∈ G1} = {π : m ≤ π ≤ M, Σ_x π(x) = 1},     m = min_j π_j,  M = max_j π_j

At one symbol the gates in the simplex reach exactly the interval [m(x), M(x)]. The experts of
largest and smallest probability suffice for any point of it.

Source: seed 002 (arXiv 2602.17554), definition of G1; the box is derived in docs/departures.md.
"""

from __future__ import annotations

import numpy as np

from .errors import GameError
from .probability import Array

__all__ = ["envelope", "gate_of_model", "model_of_gate", "normaliser"]


def envelope(experts: Array) -> tuple[Array, Array]:
    """Return m = min_j π_j and M = max_j π_j, each ``(X,)``."""
    return experts.min(axis=0), experts.max(axis=0)


def model_of_gate(gate: Array, experts: Array) -> Array:
    """Return π_g(x) = Σ_j g(x,j) π_j(x), ``(X,)``; sums to Z_g.

    Args:
        gate: g, ``(X, K')``, rows in the simplex.
        experts: π_j, ``(K', X)``.

    Raises:
        GameError: If the two have different shapes.
    """
    if gate.shape != experts.shape[::-1]:
        raise GameError("gate", expected=f"shape {experts.shape[::-1]}", found=f"{gate.shape}")
    return np.asarray((gate * experts.T).sum(axis=1))


def normaliser(gate: Array, experts: Array) -> float:
    """Return Z_g = Σ_x Σ_j g(x,j) π_j(x); 1 for a gate in G1."""
    return float(model_of_gate(gate, experts).sum())


def gate_of_model(model: Array, experts: Array) -> Array:
    """Return a gate with π_g = π: (π − m)/(M − m) on the arg-max expert, the rest on the arg-min.

    Args:
        model: π ``(X,)`` with m ≤ π ≤ M.
        experts: π_j, ``(K', X)``.

    Returns:
        g, ``(X, K')``, rows in the simplex. Where all experts agree, the first has weight 1.
    """
    m, M = envelope(experts)
    rows, width = np.arange(len(m)), M - m
    share = ((model - m) / np.where(width > 0, width, 1.0)).clip(0, 1)
    gate = np.zeros(experts.shape[::-1])
    gate[rows, experts.argmin(axis=0)] = 1 - share
    gate[rows, experts.argmax(axis=0)] += share
    return gate
