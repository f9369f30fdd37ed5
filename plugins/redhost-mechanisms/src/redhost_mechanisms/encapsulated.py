"""Encapsulated module: any network behind a stated interface.

    y = f(x),   x (..., D_in) → y (..., D_out),   checked on both sides

Source: seed 003, section "Encapsulation".
"""

from __future__ import annotations

from torch import Tensor, nn

from .widths import check_width

__all__ = ["Encapsulated"]


class Encapsulated(nn.Module):
    """A part with checked input and output widths; its implementation is opaque.

    It also makes a module that does not state its widths usable as a part of other mechanisms.

    Args:
        part: A module that maps ``(..., D_in)`` to ``(..., D_out)``.
        input_width: D_in.
        output_width: D_out.
    """

    def __init__(self, part: nn.Module, *, input_width: int, output_width: int) -> None:
        super().__init__()
        self.part = part
        self.input_width, self.output_width = input_width, output_width

    def forward(self, x: Tensor) -> Tensor:
        """Return ``(..., D_out)`` for x ``(..., D_in)``.

        Raises:
            ValueError: x or the part's output does not have the shape of the contract.
        """
        inner = type(self.part).__name__
        check_width(x, self.input_width, who=f"Encapsulated({inner})")
        y: Tensor = self.part(x)
        promised = (*x.shape[:-1], self.output_width)
        # Compare the whole shape: a part that averages over its rows keeps the last dimension.
        if y.shape != promised:
            raise ValueError(
                f"Encapsulated({inner}) promised shape {promised}, found {tuple(y.shape)}"
            )
        return y
