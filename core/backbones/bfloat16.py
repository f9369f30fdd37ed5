"""An encoder with matrix products in bfloat16: about half of the time, and different vectors.

    x Wᵀ + b    of x, W and b rounded to 8 bits of mantissa, summed in float32, rounded again
    the rest    float32, as are weights of adapters and passes with gradients

The rows of a product are computed independently, however many there are, so one call takes all of
them. Whether a text's bits depend on its own content only is checked on this processor whenever an
encoder is opened (`EngineEncoder.hold_to`).
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import torch
from torch import nn

from ...registry.errors import UsageError
from .encoder import TextEncoder
from .engines import EngineEncoder

BF16 = "bf16"
"""Device name of a CPU that multiplies in bfloat16."""

CAPABLE = frozenset({"amx_bf16", "avx512_bf16", "bf16"})
"""torch's names of the CPU instructions for bfloat16 products."""


def is_capable() -> bool:
    """Return whether this processor multiplies in bfloat16."""
    # A torch that cannot tell has no such function: then the answer is no.
    capabilities = getattr(torch.cpu, "get_capabilities", dict[str, object])()
    return torch._C._has_mkldnn and any(capabilities.get(name) is True for name in CAPABLE)


class BFloat16Encoder(EngineEncoder):
    """An encoder on a CPU with bfloat16 products; weights are kept in both precisions.

    Args:
        encoder: The same encoder in float32.

    Raises:
        UsageError: If the processor does not support bfloat16 products.
        BackboneMismatchError: If h is too far from that of float32, or a text's bits depend on
            other texts.
    """

    engine, tolerance = BF16, 0.1

    def __init__(self, encoder: TextEncoder) -> None:
        if not is_capable():
            raise UsageError(
                f"device {BF16!r}",
                expected=f"a processor with one of {', '.join(sorted(CAPABLE))}",
                found="none of them",
                hint="Use --device cpu.",
            )
        super().__init__(encoder)
        lowered = {layer: _lowered(layer) for layer in self.tiles.linears}
        self.tiles = replace(self.tiles, lowered=lowered)
        self.hold_to(encoder)

    @property
    def kernels(self) -> str:
        """The identifier of the kernels, with the precision: its features are cached apart."""
        return f"{super().kernels} {BF16}"


def _lowered(layer: nn.Linear) -> nn.Linear:
    lowered = deepcopy(layer).bfloat16()
    lowered.weight.data = lowered.weight.data.contiguous()  # these products read W row by row
    return lowered
