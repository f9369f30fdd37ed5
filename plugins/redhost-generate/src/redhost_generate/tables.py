"""Keys and values of several texts side by side: their next tokens attend in one call.

    row n    | the tokens of text n | room |

A pass with the same texts as the last one writes one place of each row and copies nothing. When
texts join or leave, or a row is full, a new table is made. Rows of a table have room for the same
power of two of tokens, so a long text does not widen the rows of short ones.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

__all__ = ["Keeper", "Row", "Table", "room_for", "table_of"]

LEAST = 64
"""The smallest room, in tokens."""


class Keeper(Protocol):
    """A text in progress.

    Attributes:
        past: Its keys and values: a KV cache of transformers, or a row of a table; None for none.
    """

    past: Any


def room_for(tokens: int) -> int:
    """Return the room of a row with so many tokens: the next power of two, and at least 64."""
    return max(LEAST, 1 << (tokens - 1).bit_length())


class Table:
    """The keys and values of texts, a row for each.

    Args:
        keepers: The texts, all with at least one token.
        room: R, the number of tokens that a row has room for.

    Attributes:
        lengths: The number of tokens in each row ``(B,)``.
        mask: What is added to the scores of a pass ``(B, 1, 1, T)``.
    """

    def __init__(self, keepers: Sequence[Keeper], *, room: int) -> None:
        caches = [cache_of(k) for k in keepers]
        lengths = [c.get_seq_length() for c in caches]
        self.room, self.mask = room, torch.empty(0)
        self.keepers = [weakref.ref(k) for k in keepers]
        self.lengths, self.rows = torch.tensor(lengths), torch.arange(len(caches))
        self.layers = list[tuple[Tensor, Tensor]]()
        for layers in zip(*(c.layers for c in caches), strict=True):
            _, heads, _, width = layers[0].keys.shape
            # Zeros: what is masked has no weight, but NaN times nothing would be NaN.
            shape = (len(caches), room, heads, width)
            keys, values = layers[0].keys.new_zeros(shape), layers[0].values.new_zeros(shape)
            for n, (layer, length) in enumerate(zip(layers, lengths, strict=True)):
                keys[n, :length] = layer.keys[0].transpose(0, 1)
                values[n, :length] = layer.values[0].transpose(0, 1)
            self.layers.append((keys, values))

    def begin(self) -> Tensor:
        """Prepare a pass for one more token of each text; return their places ``(B,)``."""
        places = torch.arange(int(self.lengths.max()) + 1)
        later = places > self.lengths[:, None]
        self.mask = torch.zeros(later.shape).masked_fill(later, -torch.inf)[:, None, None]
        return self.lengths

    def end(self) -> None:
        """Count the tokens of a pass; without this, the next pass overwrites them."""
        self.lengths = self.lengths + 1

    def attend(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, **options: Any
    ) -> Tensor:
        """Return attention ``(1, B, H, W)`` of the next token of each text.

        Args:
            module: The attention module.
            query: ``(1, H, B, W)``.
            key: The same shape, with the number of key heads.
            value: Likewise.
            options: Other arguments that transformers passes.
        """
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        keys, values = self.layers[module.layer_idx]
        keys[self.rows, self.lengths] = key[0].transpose(0, 1)
        values[self.rows, self.lengths] = value[0].transpose(0, 1)
        seen = self.mask.shape[-1]
        found: Tensor = sdpa_attention_forward(
            module,
            query.transpose(0, 2),
            keys[:, :seen].transpose(1, 2),
            values[:, :seen].transpose(1, 2),
            self.mask.to(query.dtype),
            **options,
        )[0]
        return found.transpose(0, 1)


@dataclass(frozen=True, eq=False)
class Row:
    """The keys and values of one text, in a table.

    Attributes:
        table: The table.
        at: The number of the row.
    """

    table: Table
    at: int

    def get_seq_length(self) -> int:
        """Return the number of tokens; the name is that of transformers' KV caches."""
        return int(self.table.lengths[self.at])

    def cache(self) -> Any:
        """Return a copy of them as a KV cache of transformers."""
        from transformers import DynamicCache

        length, found = self.get_seq_length(), DynamicCache()
        for index, layer in enumerate(self.table.layers):
            keys, values = (x[self.at, :length].transpose(0, 1)[None] for x in layer)
            found.update(keys, values, index)
        return found


def cache_of(keeper: Keeper) -> Any:
    """Return a text's keys and values as a KV cache of transformers."""
    return keeper.past.cache() if isinstance(keeper.past, Row) else keeper.past


def table_of(keepers: Sequence[Keeper], *, room: int) -> Table:
    """Return the table of these texts, in any order: the one they are all in, or a new one.

    Args:
        keepers: The texts.
        room: The room of its rows.
    """
    tables = {id(k.past.table): k.past.table for k in keepers if isinstance(k.past, Row)}
    wanted = {id(k) for k in keepers}
    for table in tables.values():
        if table.room == room and {id(k()) for k in table.keepers} == wanted:
            return table
    made = Table(keepers, room=room)
    for n, keeper in enumerate(keepers):
        keeper.past = Row(made, n)
    for table in tables.values():
        for left in (k() for k in table.keepers):
            if left is not None and isinstance(left.past, Row) and left.past.table is table:
                left.past = left.past.cache()  # or it would keep the whole table in memory
    return made
