"""Shared passes for texts that have different interventions.

The pass that computes h stores the states at the blocks where interventions begin. Texts continue
from these states together, in packs (`backbones.packs`). Each layer computes the frozen product for
all rows, and an adapter's addition for its own rows only. The result for a text is bitwise
identical to that of a separate pass.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, groupby
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from redhost.core.backbones.encoder import TextEncoder
from redhost.core.backbones.interventions import Intervention, hooked
from redhost.core.backbones.packs import Pack

from .graft import block_below, from_states
from .tap import states_of

if TYPE_CHECKING:
    from .lora import Lora, LoraLayer

States = Mapping[int, Tensor]
"""Block → the states ``(T, D)`` of one text above it."""


@dataclass(frozen=True)
class RowPasses:
    """The passes that adapters share in one encoder (`SharedPasses`)."""

    encoder: TextEncoder

    def begin(self, texts: Sequence[str], acts: Collection[Lora]) -> tuple[Tensor, list[States]]:
        """Return h ``(N, D)``, and each text's states at the blocks where adapters begin."""
        return encode_with_states(self.encoder, texts, acts)

    def go_on(self, texts: Sequence[str], acts: Sequence[Lora], begun: Sequence[States]) -> Tensor:
        """Return h' ``(N, D)`` of texts, each with an adapter of its own."""
        return moved_together(self.encoder, texts, acts, begun)


def shares_passes(encoder: TextEncoder) -> bool:
    """Return whether texts can continue in shared passes: in packs, with torch, on a CPU."""
    packed = encoder.device.type == "cpu" and encoder.tiles.is_packed
    return packed and encoder.has_states


def encode_with_states(
    encoder: TextEncoder, texts: Sequence[str], acts: Collection[Intervention]
) -> tuple[Tensor, list[States]]:
    """Return h ``(N, D)``, and each text's states at the blocks where interventions begin."""
    below = sorted({block_below(encoder, a) for a in acts} - {-1})
    seen, held = dict[int, Tensor](), list[States]({} for _ in texts)

    def note(block: int, _: nn.Module, _inputs: object, output: object) -> None:
        seen[block] = states_of(output)

    def keep(pack: Pack) -> None:
        for n, part in zip(pack.index, _each(pack), strict=True):
            held[n] = {block: states[0, part] for block, states in seen.items()}

    with hooked(encoder, *((encoder.blocks[b], partial(note, b)) for b in below)):
        return encoder.encode(texts, after=keep), held


def moved_together(
    encoder: TextEncoder,
    texts: Sequence[str],
    acts: Sequence[Lora],
    states: Sequence[States],
) -> Tensor:
    """Return h' ``(N, D)`` of texts, each with an intervention of its own.

    Args:
        encoder: An encoder for which `shares_passes` is true.
        texts: N texts, repeated or not.
        acts: The intervention of each text; all are `rowwise`.
        states: The states that `encode_with_states` returned for each.
    """
    out = torch.empty(len(texts), encoder.width)
    kinds = [_kind(encoder, a) for a in acts]
    order = sorted(range(len(texts)), key=lambda n: (kinds[n], id(acts[n])))  # adjacent
    for (block, _), same in groupby(order, key=lambda n: kinds[n]):
        index = list(same)
        some = [acts[n] for n in index]
        begin = [states[n][block] for n in index] if block >= 0 else None

        @contextmanager
        def going_on(
            pack: Pack,
            block: int = block,
            some: Sequence[Lora] = some,
            begin: Sequence[Tensor] | None = begin,
        ) -> Iterator[None]:
            known = None if begin is None else _side_by_side(pack, begin)
            with (
                _acting(encoder, pack, [some[n] for n in pack.index]),
                from_states(encoder, known, block=block),
            ):
                yield

        out[index] = encoder.encode([texts[n] for n in index], around=going_on)
    return out


def _kind(encoder: TextEncoder, acts: Lora) -> tuple[int, int]:
    """Return the key by which texts share a pass: its starting block, and whether acts must agree.

    Adapters without parameters that replace the encoder's can share a pass; others cannot.
    """
    return block_below(encoder, acts), id(acts) if acts.own else 0


def _each(pack: Pack) -> Iterator[slice]:
    """Yield the position of each text within a pack."""
    for run in pack.runs:
        for n in range(run.texts):
            start = run.start + n * run.tokens
            yield slice(start, start + run.tokens)


def _side_by_side(pack: Pack, states: Sequence[Tensor]) -> Tensor:
    """Return the states ``(1, N, D)`` of a pack; zeros for padding."""
    out = states[0].new_zeros(1, pack.ids.shape[1], states[0].shape[-1])
    for n, part in zip(pack.index, _each(pack), strict=True):
        out[0, part] = states[n]
    return out


def _acting(encoder: TextEncoder, pack: Pack, acts: Sequence[Lora]) -> AbstractContextManager[None]:
    """Activate the adapter of each text of a pack."""
    return acts[0].apply(encoder) if acts[0].own else by_rows(encoder, pack, acts)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Part:
    """The addition of one adapter to the rows of a layer.

    Attributes:
        layer: The adapter's layer.
        c: See `LoraLayer.magnitude`.
        tiles: Start, end and tile size of its rows, tile by tile; the last one may not be full.
    """

    layer: LoraLayer
    c: Tensor | None
    tiles: Sequence[tuple[int, int, int]]


@contextmanager
def by_rows(encoder: TextEncoder, pack: Pack, acts: Sequence[Lora | None]) -> Iterator[None]:
    """Apply each adapter to the rows of its own texts, within a ``with`` block.

    Args:
        encoder: The encoder.
        pack: The texts.
        acts: The adapter of each; None for none. None of them has parameters of its own.
    """
    by_id: dict[int, Lora] = {}
    spans = dict[int, list[tuple[int, int, int]]]()
    for one, part in zip(acts, _each(pack), strict=True):
        if one is None:
            continue
        by_id[id(one)], tile = one, tile_at(pack, part.start)
        own = spans.setdefault(id(one), [])
        if own and own[-1][1:] == (part.start, tile):
            own[-1] = (own[-1][0], part.stop, tile)
        else:
            own.append((part.start, part.stop, tile))
    parts = dict[nn.Module, list[_Part]]()
    for key, own in spans.items():
        tiles = [
            (row, min(row + tile, stop), tile)
            for start, stop, tile in own
            for row in range(start, stop, tile)
        ]
        for layer, module, c in by_id[key].layers:
            parts.setdefault(module, []).append(_Part(layer=layer, c=c, tiles=tiles))
    with hooked(encoder, *((module, partial(_add, some)) for module, some in parts.items())):
        yield


def tile_at(pack: Pack, start: int) -> int:
    """Return the tile size at the position where a text of a pack begins."""
    ends = accumulate(rows for rows, _ in pack.sections)
    tiles = (tile for _, tile in pack.sections)
    return next(tile for end, tile in zip(ends, tiles, strict=True) if start < end)


def _add(
    parts: Sequence[_Part], module: nn.Module, inputs: tuple[Tensor], output: Tensor
) -> Tensor:
    """Apply the adapters tile by tile, so that each tile stays in the CPU's cache."""
    x, out = inputs[0][0], output[0]
    bias = module.bias if isinstance(module.bias, Tensor) else None
    for part in parts:
        for start, stop, tile in part.tiles:
            part.layer.add_to(out[start:stop], x[start:stop], tile=tile, bias=bias, c=part.c)
    return output
