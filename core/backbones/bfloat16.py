"""An encoder whose products are taken in bfloat16: about half of the time, and other vectors.

    x Wᵀ + b    of x, W and b rounded to 8 bits of mantissa, added up in float32, rounded again
    the rest    float32, as are weights of adapters and passes with gradients

A product's rows do not mix, however many there are, so all go through at once; that a text's bits
are its own is tried on this processor whenever an encoder is opened (`EngineEncoder.hold_to`).
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
"""The device's name: a CPU that multiplies in bfloat16."""

CAPABLE = frozenset({"amx_bf16", "avx512_bf16", "bf16"})
"""What torch calls instructions for it."""


def is_capable() -> bool:
    """Tell whether this processor multiplies in bfloat16."""
    found = getattr(torch.cpu, "get_capabilities", dict[str, object])()
    return torch._C._has_mkldnn and any(found.get(name) is True for name in CAPABLE)


class BFloat16Encoder(EngineEncoder):
    """An encoder on a CPU's products of bfloat16 numbers; its weights are held twice.

    Args:
        encoder: The same encoder in float32.

    Raises:
        UsageError: If the processor has no such products.
        BackboneMismatchError: If it computes something else than float32 does, or texts mix.
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
        """Name the precision: its features are its own."""
        return f"{super().kernels} {BF16}"


def _lowered(layer: nn.Linear) -> nn.Linear:
    made = deepcopy(layer).bfloat16()
    made.weight.data = made.weight.data.contiguous()  # these products read outputs one by one
    return made
