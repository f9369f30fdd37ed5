"""Stream read and write heads: a part on a residual stream of another width.

    read(s)_r = R_r s,   write(s, c) = s + Σ_w W_w c_w,   y = write(s, f(read(s)))

The write heads start at zero, so the stream is unchanged until they are trained. Source: seed 003,
section "Residual Streams as Communication Bus" (`StreamReadWrite`); Elhage et al. 2021, "A
mathematical framework for transformer circuits".
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .linear import seeded_linear, zero_linear
from .widths import Widths, check_width, widths_of

__all__ = ["StreamHeads"]


class StreamHeads(nn.Module):
    """A part between read heads and write heads.

    Args:
        part: A module from ``(..., R·H)`` to ``(..., W·H)``: all read heads to all write heads.
        width: D, the width of the stream.
        head_width: H, the width of one head.
        read_heads: R.
        write_heads: W.
        generator: Generator of the read heads' initial weights.

    Raises:
        ValueError: The part has other widths.
    """

    def __init__(
        self,
        *,
        part: nn.Module,
        width: int,
        head_width: int,
        read_heads: int = 1,
        write_heads: int = 1,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.input_width = self.output_width = width
        self.head_width, self.read_heads, self.write_heads = head_width, read_heads, write_heads
        taken, given = read_heads * head_width, write_heads * head_width
        found = widths_of(part) or Widths(input=taken, output=taken)
        if found != Widths(input=taken, output=given):
            raise ValueError(
                f"StreamHeads takes a part from width {taken} to {given}, "
                f"found {type(part).__name__} from width {found.input} to {found.output}"
            )
        self.part = part
        self.read_heads_projection = seeded_linear(width, taken, generator=generator, bias=False)
        self.write_heads_projection = zero_linear(given, width)

    def read(self, stream: Tensor) -> Tensor:
        """Return the read heads' outputs ``(..., R, H)`` for a stream ``(..., D)``."""
        check_width(stream, self.input_width, who="StreamHeads")
        content: Tensor = self.read_heads_projection(stream)
        return content.reshape(*stream.shape[:-1], self.read_heads, self.head_width)

    def write(self, stream: Tensor, content: Tensor) -> Tensor:
        """Return the stream ``(..., D)`` with the content ``(..., W, H)`` added to it.

        Raises:
            ValueError: The content does not have W heads of width H.
        """
        heads = (self.write_heads, self.head_width)
        if content.shape[-2:] != heads:
            raise ValueError(
                f"StreamHeads writes {heads[0]} heads of width {heads[1]}, "
                f"found content of shape {tuple(content.shape)}"
            )
        y: Tensor = stream + self.write_heads_projection(content.flatten(-2))
        return y

    def forward(self, x: Tensor) -> Tensor:
        """Return the stream ``(..., D)`` after the part, for x ``(..., D)``."""
        content: Tensor = self.part(self.read(x).flatten(-2))
        heads = content.reshape(*x.shape[:-1], self.write_heads, self.head_width)
        return self.write(x, heads)
