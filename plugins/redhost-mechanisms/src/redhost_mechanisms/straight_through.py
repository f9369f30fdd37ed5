"""Straight-through estimator: one tensor's value forward, another one's gradient backward.

    y = value,   ∂y/∂θ := ∂through/∂θ

Source: Bengio, Léonard and Courville 2013, "Estimating or propagating gradients through stochastic
neurons".
"""

from __future__ import annotations

from torch import Tensor

__all__ = ["straight_through"]


def straight_through(value: Tensor, through: Tensor) -> Tensor:
    """Return a tensor bitwise equal to `value`, with the gradient of `through`.

    Args:
        value: The value of the result, ``(...)``.
        through: Finite, of the same shape; the gradient flows through it.

    Returns:
        A tensor ``(...)``.
    """
    # The bracket is exactly 0; (value − through) + through would round.
    return value.detach() + (through - through.detach())
