"""Packing: texts of all lengths in one pass, their tokens concatenated into a single row.

    | texts of the smallest tile, padding | texts of the next, padding | … |

Every text keeps its tile size (`backbones.tiles`). Texts are sorted by it, and each section is
padded to whole tiles with tokens whose output is ignored, so linear layers take it unchanged.
Attention and activations are computed text by text, texts of equal length together. The cost of a
text is that of its own tokens plus its share of the pass, independent of the other texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from .tiles import Run, tile_of

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Query, key and value ``(B, H, T, W)`` of texts → ``(B, T, H, W)``."""

BY_TEXT = "redhost_by_text"
"""The name under which the attention of packs is registered with transformers."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Pack:
    """The tokens of one pass.

    Attributes:
        index: Indices of its texts, in the order of the pack.
        ids: Their token ids, with padding, ``(1, N)``.
        places: Position of each token in its text, ``(1, N)``.
        runs: Its texts, grouped by length.
        sections: For each section, its number of tokens and the rows of its tiles.
    """

    index: Sequence[int]
    ids: Tensor
    places: Tensor
    runs: tuple[Run, ...]
    sections: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, ids: Sequence[Sequence[int]], index: Sequence[int]) -> Pack:
        """Return the pack of the selected texts.

        Args:
            ids: Token ids of all texts.
            index: Indices of the selected texts, sorted by tile and length.
        """
        row, places, runs, sections = list[int](), list[int](), list[Run](), list[tuple[int, int]]()
        for tile, texts in groupby(index, key=lambda n: tile_of(len(ids[n]))):
            begin = len(row)
            for tokens, numbers in groupby(texts, key=lambda n: len(ids[n])):
                start, count = len(row), 0
                for count, n in enumerate(numbers, start=1):  # noqa: B007  (the number of texts)
                    row += ids[n]
                    places += range(tokens)
                runs.append(Run(start=start, texts=count, tokens=tokens))
            # Token 0 as padding: attention leaves it out, and nothing reads its states.
            filling = [0] * (-(len(row) - begin) % tile)
            row += filling
            places += filling
            sections.append((len(row) - begin, tile))
        return cls(
            index=index,
            ids=torch.tensor([row]),
            places=torch.tensor([places]),
            runs=tuple(runs),
            sections=tuple(sections),
        )


def packs(ids: Sequence[Sequence[int]], *, tokens: int) -> Iterator[Pack]:
    """Yield packs of all texts.

    Args:
        ids: Token ids of each text.
        tokens: Approximate number of tokens in a pass.
    """
    # By tile, then length: sections and runs then lie next to each other.
    order = sorted(range(len(ids)), key=lambda n: (tile_of(len(ids[n])), len(ids[n])))
    index, size = list[int](), 0
    for n in order:
        if index and size + len(ids[n]) > tokens:
            yield Pack.of(ids, index)
            index, size = [], 0
        index.append(n)
        size += len(ids[n])
    if index:
        yield Pack.of(ids, index)


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    _mask: Tensor | None,
    *,
    runs: Sequence[Run],
    **options: Any,
) -> tuple[Tensor, None]:
    """Return attention ``(1, N, H, W)`` within each text of a pack, as transformers computes it.

    Args:
        module: The attention module.
        query: ``(1, H, N, W)``.
        key: The same shape, with the number of key heads.
        value: Likewise.
        _mask: None: there is no mask except the one that a causal module applies itself.
        runs: The texts.
        options: Other arguments that transformers passes.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return sdpa_attention_forward(module, q, k, v, None, **options)[0]

    return by_text(plain, query, key, value, runs=runs), None


@contextmanager
def attending(
    model: Any, *, name: str = BY_TEXT, function: Callable[..., Any] = attend
) -> Iterator[None]:
    """Compute attention of a transformers encoder in another way, within a ``with`` block.

    Args:
        model: The encoder.
        name: The name under which the function is registered with transformers.
        function: Computes attention; by default within single texts.
    """
    config = model.config
    before = getattr(config, "_attn_implementation", None)
    if before is None:  # our own encoder, which restricts attention by itself
        yield
        return
    _register(name, function)
    # The model's own switch: its layers stay as they are, only their attention is ours.
    config._attn_implementation = name
    try:
        yield
    finally:
        config._attn_implementation = before


@cache
def _register(name: str, function: Callable[..., Any]) -> None:
    from transformers import AttentionInterface

    AttentionInterface.register(name, function)


def by_text(
    attention: Attention, query: Tensor, key: Tensor, value: Tensor, *, runs: Sequence[Run]
) -> Tensor:
    """Return attention ``(1, N, H, W)`` within each text; zero for padding.

    Args:
        attention: The attention function that is applied to each text.
        query: ``(1, H, N, W)``.
        key: The same shape, with the number of key heads.
        value: Likewise.
        runs: The texts.
    """
    parts = [x[0].transpose(0, 1) for x in (query, key, value)]  # (N, H, W)
    # Zeros, not `empty`: padding would bring NaN into the sums of the next layer.
    out = query.new_zeros(parts[0].shape)
    for run in runs:
        run.of(out).copy_(attention(*(run.of(x).transpose(1, 2) for x in parts)))
    return out[None]
