"""Passes in which a text's bits are its own, without batches filled with copies.

The bits of a row of a matrix product depend on how many rows it has. So the rows of a pass go
through every linear layer in tiles, of a size that the text's own length decides:

    T of a text      1   2–16   17–32   33–64   65–96   97–128   …    (`tile_of`)
    rows of a tile   1   16     32      64      32      128      …

The last tile is filled: a pass wastes less than one of each size. Texts of one length share a pass,
or all texts do (`backbones.packs`). What else mixes rows was looked at kernel by kernel:

    layer norm, sums over D     row by row
    activations                 vectors of 8 or 16 numbers and a rest, with other bits: text by text
    fused attention             head by head; but MKL's bits follow the alignment of a head's start,
                                and one head alone is shared out among threads: so only of
                                several heads, of whole cache lines each
    anything else               unknown: a pass for each text (`is_shared`)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

TILES = (128, 64, 32, 16)
"""Rows of tiles: more are not faster on the CPUs tried, and 16 take as long as 10 of a product."""

PASS_TOKENS = 1024
"""About so many tokens of a pass: enough to fill it, and its states stay in the CPU's cache."""

ROW_BY_ROW = frozenset({"bert", "llama", "qwen2", "qwen3", "roberta"})
"""Architectures made of the kernels above; property tests hold each to the promise."""

PLACED_FROM_ZERO = ROW_BY_ROW - {"roberta"}
"""Those of them whose positions are what a pack says: 0, 1, … of each text."""

KERNELS = "tiles 3"
"""Names what the bits of a pass come from: part of what identifies a stored feature."""

LINE = 16
"""Float32 numbers of a cache line."""

COLUMNS = 4
"""Columns that MKL's products take at a time on AMD's CPUs. Of fewer than a cache line, and not a
multiple, a row's bits follow its place: an adapter of rank 5 has such products."""

VECTORS = 32
"""Numbers that torch's loops take at a time, at most: two vectors of AVX-512."""

ONEDNN_FROM = 2**16
"""Weights from which oneDNN's product pays its call."""

_CPU = getattr(torch.cpu, "get_capabilities", dict[str, str])()

ONEDNN = torch._C._has_mkldnn and not str(_CPU.get("cpu_name", "")).startswith("Intel")
"""Whether oneDNN's product is taken: of a tile it is faster than MKL's, but not on Intel's CPUs."""

Forward = Callable[[Tensor], Tensor]

Sections = Sequence[tuple[int, int]]
"""Rows and those of a tile, section by section: multiples of it."""


def tile_of(tokens: int) -> int:
    """Return how many rows a tile has for a text of so many tokens."""
    if tokens == 1:
        return 1
    rows = TILES[-1] if tokens <= TILES[-1] else -(-tokens // TILES[-2]) * TILES[-2]
    return next(tile for tile in TILES if rows % tile == 0)


@dataclass(frozen=True, kw_only=True)
class Run:
    """Texts of one length, side by side.

    Attributes:
        start: Where the first begins.
        texts: B of them.
        tokens: T of each.
    """

    start: int
    texts: int
    tokens: int

    def of(self, states: Tensor) -> Tensor:
        """Return the run's part ``(B, T, …)`` of what a pack has for each token, ``(N, …)``."""
        end = self.start + self.texts * self.tokens
        return states[self.start : end].view(self.texts, self.tokens, *states.shape[1:])


@dataclass(frozen=True, kw_only=True, eq=False)
class Tiles:
    """How an encoder's passes are computed on a CPU.

    Attributes:
        linears: Its linear layers.
        activations: Its modules that change numbers one by one.
        unread: Modules above its last states, which are all that is read.
        is_shared: Whether texts of one length may share a pass.
        is_packed: Whether all texts may.
        lowered: Of linear layers, the same in a lower precision, which compute their passes.
    """

    linears: Sequence[nn.Linear]
    activations: Sequence[nn.Module]
    unread: Sequence[nn.Module]
    is_shared: bool
    is_packed: bool
    lowered: Mapping[nn.Linear, nn.Linear] = field(default_factory=dict)

    @classmethod
    def of(cls, model: nn.Module) -> Self:
        """Return those of an encoder, whose linear layers then lie in memory input by input.

        So a product of few rows reads them in one go: it takes half to three quarters of the time.
        """
        modules = list(model.modules())
        linears = [
            m for m in modules if isinstance(m, nn.Linear) and type(m).forward is nn.Linear.forward
        ]
        for linear in linears:
            linear.weight.data = linear.weight.data.t().contiguous().t()
        config: Any = model.config
        is_shared, pooler = _is_row_by_row(config), getattr(model, "pooler", None)
        return cls(
            linears=linears,
            activations=[m for m in modules if _is_activation(m)],
            unread=[pooler] if isinstance(pooler, nn.Module) else [],
            is_shared=is_shared,
            is_packed=is_shared and config.model_type in PLACED_FROM_ZERO,
        )

    def rows(self, tokens: int, *, most: int) -> int:
        """Return how many texts of so many tokens share a pass."""
        return max(1, min(most, PASS_TOKENS // tokens)) if self.is_shared else 1

    @contextmanager
    def applied(
        self, tile: int, *, sections: Sections = (), runs: Sequence[Run] | None = None
    ) -> Iterator[None]:
        """Compute the passes of a ``with`` block in tiles.

        Nothing here has gradients. The caller keeps other threads away from the model.

        Args:
            tile: The rows of its texts' tiles.
            sections: Of a pack: how many rows go through in tiles of how many.
            runs: Of a pack: its texts; by default a pass has a text in each row of its batch.
        """
        # A pack of one tile is what a layer computes by itself.
        is_one = not ONEDNN and not self.lowered and [*sections] == [(tile, tile)]
        # Autocast changes the products of layers, and would not change ours; it promises no bits.
        linears = () if is_one or torch.is_autocast_enabled("cpu") else self.linears
        # Past nn.Module's own __setattr__, which costs more than a small product.
        for linear in linears:
            lowered = self.lowered.get(linear)
            linear.__dict__["forward"] = (
                _tiled(linear, tile, sections) if lowered is None else _whole(lowered)
            )
        for activation in self.activations:
            activation.__dict__["forward"] = _text_by_text(activation, runs)
        for module in self.unread:
            module.__dict__["forward"] = _nothing
        try:
            yield
        finally:
            for module in (*linears, *self.activations, *self.unread):
                del module.__dict__["forward"]  # the class's own shows again


def _tiled(linear: nn.Linear, tile: int, sections: Sections) -> Forward:
    """Return the layer over numbers ``(…, D)`` whose rows go through in tiles."""
    weight, bias = linear.weight, linear.bias
    total = sum(count for count, _ in sections)

    def forward(x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        count = rows.shape[0]  # the len() of a tensor is a function in Python: a pass had 150
        parts = sections if count == total else [(-(-count // tile) * tile, tile)]
        if filling := sum(n for n, _ in parts) - count:
            rows = torch.constant_pad_nd(rows, (0, 0, 0, filling))
        out = _products(rows, parts, weight, bias)
        return out[:count].view(*x.shape[:-1], -1)

    return forward


def _whole(lowered: nn.Linear) -> Forward:
    """Return a layer in a lower precision, over numbers ``(…, D)``.

    Its products add up along D in one order, however many rows there are (`EngineEncoder.hold_to`).
    """
    weight, bias = lowered.weight, lowered.bias

    def forward(x: Tensor) -> Tensor:
        rows = x.to(weight.dtype)
        out: Tensor = torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", [], "")
        return out.to(x.dtype)

    return forward


def tiled(rows: Tensor, tile: int, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x Wᵀ + b of rows ``(N, D)`` that go through in tiles, as those of a layer do."""
    count = len(rows)
    if filling := -count % tile:
        rows = torch.constant_pad_nd(rows, (0, 0, 0, filling))
    return _products(rows, [(count + filling, tile)], weight, bias)[:count]


def _products(rows: Tensor, sections: Sections, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x Wᵀ + b of rows ``(N, D)``, tile by tile."""
    if rows.shape[0] == sections[0][1]:
        return _product(rows, weight, bias)
    out = rows.new_empty(rows.shape[0], weight.shape[0])
    sizes = [count for count, _ in sections]
    for x, y, (_, tile) in zip(
        torch.split(rows, sizes), torch.split(out, sizes), sections, strict=True
    ):
        for part, made in zip(torch.split(x, tile), torch.split(y, tile), strict=True):
            _product_into(made, part, weight, bias)
    return out


def _product_into(out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """Write x Wᵀ + b of a tile, the bits of `_product`."""
    if _is_onednn(x, weight) or _is_odd(weight):
        out.copy_(_product(x, weight, bias))
    elif bias is None:
        torch.mm(x, weight.t(), out=out)
    else:
        torch.addmm(bias, x, weight.t(), out=out)


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x Wᵀ + b of a tile, ``(M, D)`` → ``(M, N)``."""
    if _is_odd(weight):
        columns, filling = len(weight), -len(weight) % COLUMNS
        weight = torch.constant_pad_nd(weight, (0, 0, 0, filling))
        bias = None if bias is None else torch.constant_pad_nd(bias, (0, filling))
        return _product(x, weight, bias)[:, :columns].contiguous()
    if not _is_onednn(x, weight):
        return functional.linear(x, weight, bias)
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return out


def _is_odd(weight: Tensor) -> bool:
    """Tell whether a product is so narrow that a row's bits follow its place in the tile."""
    return weight.shape[0] < LINE and weight.shape[0] % COLUMNS > 0


def _is_onednn(x: Tensor, weight: Tensor) -> bool:
    return ONEDNN and x.shape[0] > 1 and weight.numel() >= ONEDNN_FROM


def _text_by_text(activation: nn.Module, runs: Sequence[Run] | None) -> Forward:
    """Return the activation over numbers of texts, one text at a time.

    Those of a batch ``(B, …)``, or ``(1, N, …)`` of a pack.
    """
    plain: Callable[[nn.Module, Tensor], Tensor] = type(activation).forward

    def forward(x: Tensor) -> Tensor:
        # In whole vectors that no two threads share there is no rest, wherever a text begins.
        if x.shape[-1] % VECTORS == 0 and x.is_contiguous() and torch.get_num_threads() == 1:
            return plain(activation, x)
        if runs is not None:
            out = torch.zeros_like(x)
            for run in runs:
                for text, made in zip(run.of(x[0]), run.of(out[0]), strict=True):
                    made.copy_(plain(activation, text[None])[0])
            return out
        if len(x) == 1:
            return plain(activation, x)
        return torch.stack([plain(activation, text) for text in x])

    return forward


def _nothing(*_: object, **__: object) -> None:
    """Compute nothing."""


def _is_activation(module: nn.Module) -> bool:
    made = type(module).__module__ in {"torch.nn.modules.activation", "transformers.activations"}
    return made and not any(True for _ in module.parameters())


def _is_row_by_row(config: Any) -> bool:
    """Tell whether an encoder is made of kernels whose rows are known not to mix."""
    if config.model_type not in ROW_BY_ROW or getattr(config, "sliding_window", None) is not None:
        return False
    heads = config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    fused = getattr(config, "_attn_implementation", "sdpa") == "sdpa"
    return fused and heads > 1 and width % LINE == 0
