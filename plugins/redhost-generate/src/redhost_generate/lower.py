"""What the blocks below an adapter have computed of a prompt: it is used again, not computed twice.

A prompt is read without adapters to choose one. The chosen one changes nothing below its lowest
block, so a second reading starts there, with the same bits as if it had started at the bottom.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from redhost.core.backbones.encoder import TextEncoder
from redhost.core.backbones.interventions import hooked
from redhost.core.backbones.tiles import ROW_BY_ROW

__all__ = ["LowerBlocks"]


class LowerBlocks:
    """The states that enter blocks, and the keys and values of the blocks below, of one prompt.

    Args:
        trunk: The encoder.
        blocks: The blocks whose inputs are kept, by number.
    """

    def __init__(self, trunk: TextEncoder, blocks: Collection[int]) -> None:
        known = trunk.model.config.model_type in ROW_BY_ROW  # a block returns its states alone
        self.trunk = trunk
        self.cache: Any = None
        self.states: dict[int, list[Tensor]] = {b: [] for b in blocks if known and b > 0}

    def noted(self) -> AbstractContextManager[None]:
        """Return the context of a pass without adapters whose states are kept."""

        def note(block: int, _: nn.Module, _inputs: object, output: Tensor) -> None:
            self.states[block].append(output)

        below = ((self.trunk.blocks[b - 1], partial(note, b)) for b in self.states)
        return hooked(self.trunk, *below)

    def chosen(self, block: int, cache: Any) -> bool:
        """Keep what a second reading from a block on needs; return whether there can be one.

        Args:
            block: The block.
            cache: The KV cache of the first reading.
        """
        from transformers.cache_utils import DynamicLayer

        states = self.states.get(block)
        if not states or any(type(layer) is not DynamicLayer for layer in cache.layers):
            return False
        self.states, self.cache = {block: [torch.cat(states, dim=1)]}, cache
        return True

    @contextmanager
    def skipped(self, start: int, stop: int) -> Iterator[None]:
        """Start the pass of a ``with`` block, which reads these tokens, where states are known."""
        [(block, [states])] = self.states.items()
        known = states[:, start:stop].clone()
        below = list(self.trunk.blocks)[:block]
        try:
            for module in below:
                module.forward = lambda *_, **__: known
            yield
        finally:
            for module in below:
                del module.forward  # restores the method of the class

    def complete(self, cache: Any, start: int, stop: int) -> None:
        """Add the skipped blocks' keys and values of these tokens to a KV cache."""
        [block] = self.states
        for mine, theirs in zip(self.cache.layers[:block], cache.layers, strict=False):
            theirs.update(*(x[:, :, start:stop] for x in (mine.keys, mine.values)))
