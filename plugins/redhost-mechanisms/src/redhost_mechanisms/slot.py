"""Replaceable slot: a place in a network that takes any part with the right widths.

    y = f(x), or 0 while the slot is empty

Source: seed 003, section "Replaceability".
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .widths import Widths, check_width, widths_of

__all__ = ["Slot"]


class Slot(nn.Module):
    """Holds one part, or none. Exchanging the part changes nothing outside the slot.

    The state dict of a slot is its part's, under ``part.``; that of an empty slot has no entries.

    Args:
        input_width: D_in, the part's input width.
        output_width: D_out, the part's output width.
        part: The initial part, if any.
    """

    anchor: Tensor
    part: nn.Module | None

    def __init__(
        self, *, input_width: int, output_width: int, part: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.input_width, self.output_width = input_width, output_width
        # Records the device of an empty slot, since `to` moves buffers as well.
        self.register_buffer("anchor", torch.empty(0), persistent=False)
        self.register_module("part", None)
        if part is not None:
            self.attach(part)

    def attach(self, part: nn.Module) -> nn.Module | None:
        """Put a part into the slot, on the slot's device and in its mode.

        The part keeps its dtype: a slot never rounds weights.

        Args:
            part: A module with the slot's widths.

        Returns:
            The previous part, if any.

        Raises:
            ValueError: The widths differ; the slot is then unchanged.
        """
        found = widths_of(part) or Widths(input=self.input_width, output=self.input_width)
        if found != Widths(input=self.input_width, output=self.output_width):
            raise ValueError(
                f"Slot takes a part from width {self.input_width} to {self.output_width}, "
                f"found {type(part).__name__} from width {found.input} to {found.output}"
            )
        previous, self.part = self.part, part.to(self.anchor.device).train(self.training)
        return previous

    def detach(self) -> nn.Module | None:
        """Empty the slot and return its part, if any."""
        previous, self.part = self.part, None
        return previous

    def forward(self, x: Tensor) -> Tensor:
        """Return ``(..., D_out)`` for x ``(..., D_in)``; zeros of x's dtype when empty."""
        check_width(x, self.input_width, who="Slot")
        if self.part is None:
            return x.new_zeros(*x.shape[:-1], self.output_width)
        y: Tensor = self.part(x)
        return y
