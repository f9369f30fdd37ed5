"""Adaptive graft: a projection if two widths differ, the identity if they are equal.

    linear    y = W x + b
    mlp       y = W₂ gelu(W₁ x + b₁) + b₂,   of hidden width (D_in + D_out) / 2

Source: seed 003, section "Shape Matching".
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from .linear import seeded_linear
from .naming import check_name
from .widths import check_width

__all__ = ["AdaptiveGraft", "ProjectionMode"]

ProjectionMode = Literal["linear", "mlp"]
"""How widths are adapted: with one layer, or with two."""


class AdaptiveGraft(nn.Module):
    """Maps one width to another; for equal widths it is the identity and has no parameters.

    Args:
        input_width: D_in, the given width.
        output_width: D_out, the required width.
        mode: The kind of projection.
        generator: Generator of its initial weights.

    Raises:
        ValueError: The mode is unknown (checked for equal widths too).
    """

    def __init__(
        self,
        *,
        input_width: int,
        output_width: int,
        mode: ProjectionMode = "linear",
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        check_name(mode, get_args(ProjectionMode), what="mode")
        self.input_width, self.output_width = input_width, output_width
        self.projection: nn.Module = nn.Identity()
        if input_width != output_width:
            self.projection = _projection(input_width, output_width, mode, generator)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``(..., D_out)`` for x ``(..., D_in)``."""
        check_width(x, self.input_width, who="AdaptiveGraft")
        y: Tensor = self.projection(x)
        return y


def _projection(
    taken: int, given: int, mode: ProjectionMode, generator: torch.Generator
) -> nn.Module:
    if mode == "linear":
        return seeded_linear(taken, given, generator=generator)
    hidden = (taken + given) // 2
    return nn.Sequential(
        seeded_linear(taken, hidden, generator=generator),
        nn.GELU(),
        seeded_linear(hidden, given, generator=generator),
    )
