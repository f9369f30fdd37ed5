"""Input graft: the layer of a host network that a new part reads.

    x = transform(activations[source])

Source: seed 003, section "Input Grafting".
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from .naming import check_name
from .widths import Widths, check_width, widths_of

__all__ = ["InputGraft"]


class InputGraft(nn.Module):
    """The name of a host's layer, its width, and a transform of its output.

    Args:
        source: The layer's name, as in `nn.Module.named_modules`.
        width: D, the width of the layer's output.
        transform: A module from ``(..., D)`` to the part's input; trained along with the graft.

    Raises:
        ValueError: The transform takes another width.
    """

    def __init__(self, *, source: str, width: int, transform: nn.Module | None = None) -> None:
        super().__init__()
        self.source = source
        self.transform = nn.Identity() if transform is None else transform
        widths = widths_of(self.transform) or Widths(input=width, output=width)
        if widths.input != width:
            raise ValueError(
                f"InputGraft: layer {source!r} gives width {width}, "
                f"found a transform that takes {widths.input}"
            )
        self.input_width, self.output_width = widths.input, widths.output

    def forward(self, activations: Mapping[str, Tensor]) -> Tensor:
        """Return the part's input, ``(..., D_out)``.

        Args:
            activations: The outputs of layers by name; that of `source` is ``(..., D)``.

        Raises:
            ValueError: The layer is not among them, or has another width.
        """
        check_name(self.source, activations, what="layer")
        activation = activations[self.source]
        check_width(activation, self.input_width, who=f"InputGraft at layer {self.source!r}")
        x: Tensor = self.transform(activation)
        return x
