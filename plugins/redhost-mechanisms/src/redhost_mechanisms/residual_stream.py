"""Residual stream: a bus that parts read and add to, one after the other.

    s_0 = x,   s_{i+1} = s_i + f_i(s_i)

Source: seed 003, section "Residual Streams as Communication Bus"; He et al. 2016, "Deep residual
learning for image recognition", equation 1; Elhage et al. 2021, "A mathematical framework for
transformer circuits".
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

from .widths import Widths, check_width, widths_of

__all__ = ["ResidualStream"]


class ResidualStream(nn.Module):
    """Parts on a stream of one width. A part that returns zero leaves it bitwise unchanged.

    Args:
        width: D, the width of the stream.
        parts: Modules that map ``(..., D)`` to ``(..., D)``; may be empty.

    Raises:
        ValueError: A part has other widths; the message names its index.
    """

    def __init__(self, *, width: int, parts: Iterable[nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self.input_width = self.output_width = width
        for index, part in enumerate(self.parts):
            found = widths_of(part) or Widths(input=width, output=width)
            if found != Widths(input=width, output=width):
                raise ValueError(
                    f"ResidualStream has width {width}, "
                    f"found part {index} from width {found.input} to {found.output}"
                )

    def forward(self, x: Tensor) -> Tensor:
        """Return the stream after the last part, ``(..., D)``, for x ``(..., D)``."""
        check_width(x, self.input_width, who="ResidualStream")
        for part in self.parts:
            x = x + part(x)
        return x
