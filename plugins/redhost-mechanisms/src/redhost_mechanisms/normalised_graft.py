"""Normalised graft: a part whose input and output scales are independent of the host's.

    y = LN_out(f(LN_in(x))),   either norm may be left out

Source: seed 003, section "Normalization Boundaries"; Ba et al. 2016, "Layer normalization"; Xiong
et al. 2020, "On layer normalization in the transformer architecture", for pre and post.
"""

from __future__ import annotations

from torch import Tensor, nn

from .widths import check_width, widths_of

__all__ = ["NormalisedGraft"]


class NormalisedGraft(nn.Module):
    """A part with a norm before it, after it, or both; each norm has the width of its side.

    Args:
        part: A module from ``(..., D_in)`` to ``(..., D_out)`` that states its widths.
        pre_norm: Whether x is normalised.
        post_norm: Whether the part's output is normalised.

    Raises:
        ValueError: Neither norm is enabled, or the part states no width.
    """

    def __init__(self, *, part: nn.Module, pre_norm: bool = True, post_norm: bool = False) -> None:
        super().__init__()
        if not (pre_norm or post_norm):
            raise ValueError("NormalisedGraft normalises before or after the part, found neither")
        widths = widths_of(part)
        if widths is None:
            raise ValueError(
                f"NormalisedGraft: {type(part).__name__} keeps any width and a norm has one; "
                "wrap it in Encapsulated"
            )
        self.input_width, self.output_width = widths.input, widths.output
        self.pre_norm = nn.LayerNorm(widths.input) if pre_norm else nn.Identity()
        self.part = part
        self.post_norm = nn.LayerNorm(widths.output) if post_norm else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Return ``(..., D_out)`` for x ``(..., D_in)``."""
        check_width(x, self.input_width, who="NormalisedGraft")
        y: Tensor = self.post_norm(self.part(self.pre_norm(x)))
        return y
