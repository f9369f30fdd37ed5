"""Straight-through estimator: one value forward, another one's gradient backward.

    y = value,   ∂y/∂θ := ∂through/∂θ

Source: Bengio, Léonard and Courville 2013, "Estimating or propagating gradients through stochastic
neurons".
"""

from __future__ import annotations

from torch import Tensor

__all__ = ["straight_through"]


def straight_through(value: Tensor, through: Tensor) -> Tensor:
    """Return `value` bit for bit, with the gradient of `through`.

    Args:
        value: What the result is, ``(...)``.
        through: Finite, of the same shape; what the gradient flows through.

    Returns:
        A tensor ``(...)``.
    """
    # The bracket is exactly 0; (value − through) + through would round.
    return value.detach() + (through - through.detach())
