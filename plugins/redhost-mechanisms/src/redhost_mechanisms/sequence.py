"""Composable sequence: each part's output is the next part's input.

    y = (f_n ∘ … ∘ f_1)(x)

Source: seed 003, section "Composability".
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

from .widths import chained_widths, check_width

__all__ = ["ComposableSequence"]


class ComposableSequence(nn.Module):
    """Parts one after the other; the widths are checked on construction.

    Args:
        parts: At least one of them states its widths.

    Raises:
        ValueError: A part does not take the width it is given; the message names its index.
    """

    def __init__(self, *, parts: Iterable[nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        widths = chained_widths(self.parts, who="ComposableSequence")
        if widths is None:
            raise ValueError(
                f"ComposableSequence: none of its {len(self.parts)} parts says a width; "
                "wrap one in Encapsulated"
            )
        self.input_width, self.output_width = widths.input, widths.output

    def forward(self, x: Tensor) -> Tensor:
        """Return ``(..., D_out)`` for x ``(..., D_in)``."""
        check_width(x, self.input_width, who="ComposableSequence: part 0")
        for part in self.parts:
            x = part(x)
        return x
