"""Linear layers initialised from a generator, never from the global random state."""

from __future__ import annotations

import math

import torch
from torch import nn

__all__ = ["seeded_linear", "zero_linear"]


def seeded_linear(
    input_width: int, output_width: int, *, generator: torch.Generator, bias: bool = True
) -> nn.Linear:
    """Return a linear layer with PyTorch's usual initial distribution: U(±1/√input).

    Args:
        input_width: D_in.
        output_width: D_out.
        generator: Generator of the weights; on the CPU.
        bias: Whether the layer has a bias.
    """
    layer = _without_weights(input_width, output_width, bias=bias)
    bound = 1 / math.sqrt(input_width)
    for tensor in layer.parameters():
        nn.init.uniform_(tensor, -bound, bound, generator=generator)
    return layer


def zero_linear(input_width: int, output_width: int) -> nn.Linear:
    """Return a linear layer with all weights 0: its output is 0 until it is trained."""
    layer = _without_weights(input_width, output_width, bias=True)
    for tensor in layer.parameters():
        nn.init.zeros_(tensor)
    return layer


def _without_weights(input_width: int, output_width: int, *, bias: bool) -> nn.Linear:
    # On a real device the constructor would draw from the global generator.
    layer = nn.Linear(input_width, output_width, bias=bias, device="meta")
    return layer.to_empty(device="cpu")
