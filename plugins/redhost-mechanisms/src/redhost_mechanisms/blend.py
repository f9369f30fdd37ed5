"""Blend: a weighted average of two or more parts.

    y = α · first(x) + (1 − α) · second(x)               α in [0, 1]
    y = Σ_i w_i · f_i(x)                                 w = softmax(logits), or given

Source: seed 003, section "Interpolative (Blending)".
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from .naming import numbered
from .straight_through import straight_through
from .widths import check_width, common_widths

__all__ = ["Blend", "MultiBlend"]

_ROUNDING = 1e-6


class Blend(nn.Module):
    """The blend of two parts, with exactly the given α.

    A learned α is an unconstrained parameter, clamped to [0, 1] in `forward`. The gradient passes
    the clamp unchanged (straight-through), so an α at the border can move back inside.

    Args:
        first: A module that maps ``(..., D_in)`` to ``(..., D_out)``.
        second: A module that maps the same widths.
        alpha: The weight of `first`.
        learnable: Whether α is trained.

    Raises:
        ValueError: α is outside [0, 1], or the widths differ.
    """

    alpha: Tensor

    def __init__(
        self, *, first: nn.Module, second: nn.Module, alpha: float = 0.5, learnable: bool = False
    ) -> None:
        super().__init__()
        if not 0 <= alpha <= 1:
            raise ValueError(f"Blend: alpha is between 0 and 1, found {alpha}")
        widths = common_widths({"first": first, "second": second}, who="Blend")
        self.input_width, self.output_width = widths.input, widths.output
        self.first, self.second = first, second
        value = torch.tensor(float(alpha))
        if learnable:
            self.alpha = nn.Parameter(value)
        else:
            self.register_buffer("alpha", value)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``(..., D_out)`` for x ``(..., D_in)``."""
        check_width(x, self.input_width, who="Blend")
        alpha = straight_through(self.alpha.clamp(0, 1), self.alpha)
        y: Tensor = alpha * self.first(x) + (1 - alpha) * self.second(x)
        return y


class MultiBlend(nn.Module):
    """The blend of any number of parts; the weights do not depend on x.

    Args:
        parts: Modules that all map ``(..., D_in)`` to ``(..., D_out)``.
        weights: One for each part, at least 0, summing to 1; equal by default.
        learnable: Whether the weights are trained, as the logits of a softmax. A weight of 0
            would then stay 0, so it is refused.

    Raises:
        ValueError: The weights do not satisfy this, or the widths differ.
    """

    weights: Tensor

    def __init__(
        self,
        *,
        parts: Iterable[nn.Module],
        weights: Sequence[float] | None = None,
        learnable: bool = True,
    ) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        widths = common_widths(numbered([*self.parts]), who="MultiBlend")
        self.input_width, self.output_width = widths.input, widths.output
        given = [1 / len(self.parts)] * len(self.parts) if weights is None else [*weights]
        _check_weights(given, parts=len(self.parts), learnable=learnable)
        value = torch.tensor(given)
        if learnable:
            self.logits = nn.Parameter(value.log())
        else:
            self.register_buffer("weights", value)
        self.learnable = learnable

    def current_weights(self) -> Tensor:
        """Return the weights ``(E,)``, at least 0 and summing to 1."""
        return self.logits.softmax(dim=0) if self.learnable else self.weights

    def forward(self, x: Tensor) -> Tensor:
        """Return ``(..., D_out)`` for x ``(..., D_in)``."""
        check_width(x, self.input_width, who="MultiBlend")
        first, *others = zip(self.current_weights(), self.parts, strict=True)
        y: Tensor = first[0] * first[1](x)
        for weight, part in others:
            y = y + weight * part(x)
        return y


def _check_weights(weights: Sequence[float], *, parts: int, learnable: bool) -> None:
    if len(weights) != parts:
        raise ValueError(f"MultiBlend: {parts} parts take {parts} weights, found {len(weights)}")
    if min(weights) < 0 or abs(math.fsum(weights) - 1) > _ROUNDING:
        raise ValueError(
            f"MultiBlend: weights are at least 0 and sum to 1, found {list(weights)}, "
            f"which sum to {math.fsum(weights):g}"
        )
    if learnable and min(weights) == 0:
        raise ValueError("MultiBlend: a learned weight of 0 could never grow; pass a small one")
