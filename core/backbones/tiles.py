"""Forward passes that are bitwise independent of the batch, without padding batches with copies.

The bits of a row of a matrix product depend on the number of rows in the product. Therefore every
linear layer processes the rows of a pass in tiles, whose size depends on the text's length alone:

    T of a text      1   2–16   17–32   33–64   65–96   97–128   …    (`tile_of`)
    rows of a tile   1   16     32      64      32      128      …

The last tile is padded, so a pass wastes less than one tile of each size. Either texts of equal
length share a pass, or all texts do (`backbones.packs`). Other kernels were checked for dependence
between rows, one by one:

    layer norm, sums over D     row by row
    activations                 SIMD vectors of 8 or 16 numbers, whose remainder has other bits:
                                computed text by text
    fused attention             head by head; but MKL's bits depend on the alignment of a head's
                                start, and a single head is split among threads: used only with
                                several heads, each a multiple of a cache line
    anything else               unknown: one pass for each text (`is_shared`)
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
"""Tile sizes in rows. Larger ones are not faster on the CPUs tried; 16 rows take as long as 10."""

PASS_TOKENS = 1024
"""Approximate tokens of a pass: enough for full throughput, and states fit in the CPU's cache."""

ROW_BY_ROW = frozenset({"bert", "llama", "qwen2", "qwen3", "roberta"})
"""Architectures that use the kernels above only; property tests check batch independence."""

PLACED_FROM_ZERO = ROW_BY_ROW - {"roberta"}
"""Those of them that use the position ids of a pack: 0, 1, … for each text."""

KERNELS = "tiles 3"
"""Identifier of the kernels that determine the bits of a pass; part of the feature cache's key."""

LINE = 16
"""Float32 numbers in a cache line."""

COLUMNS = 4
"""Columns that MKL's products process at a time on AMD CPUs. If a product has fewer columns than a
cache line and not a multiple of this, a row's bits depend on its position: e.g. LoRA of rank 5."""

VECTORS = 32
"""Most numbers that torch's elementwise loops process at a time: two AVX-512 vectors."""

ONEDNN_FROM = 2**16
"""Number of weights from which oneDNN's product outweighs the overhead of its call."""

_CPU = getattr(torch.cpu, "get_capabilities", dict[str, str])()

ONEDNN = torch._C._has_mkldnn and not str(_CPU.get("cpu_name", "")).startswith("Intel")
"""Whether oneDNN's product is used: for a tile it is faster than MKL's, except on Intel CPUs."""

Forward = Callable[[Tensor], Tensor]

Sections = Sequence[tuple[int, int]]
"""For each section, its number of rows, a multiple of the tile, and the rows of a tile."""


def tile_of(tokens: int) -> int:
    """Return the number of rows in a tile for a text with this number of tokens."""
    if tokens == 1:
        return 1
    # Longer texts count in multiples of 32, whose largest divisor among the tiles is taken.
    rows = TILES[-1] if tokens <= TILES[-1] else -(-tokens // TILES[-2]) * TILES[-2]
    return next(tile for tile in TILES if rows % tile == 0)


@dataclass(frozen=True, kw_only=True)
class Run:
    """Consecutive texts of equal length in a pack.

    Attributes:
        start: Position of the first text's first token.
        texts: B, the number of texts.
        tokens: T, the number of tokens of each.
    """

    start: int
    texts: int
    tokens: int

    def of(self, states: Tensor) -> Tensor:
        """Return the run's part ``(B, T, …)`` of a tensor with a row for each token ``(N, …)``."""
        end = self.start + self.texts * self.tokens
        return states[self.start : end].view(self.texts, self.tokens, *states.shape[1:])


@dataclass(frozen=True, kw_only=True, eq=False)
class Tiles:
    """How an encoder's passes are computed on a CPU.

    Attributes:
        linears: Its linear layers.
        activations: Its elementwise modules.
        is_shared: Whether texts of equal length may share a pass.
        is_packed: Whether texts of any length may share a pass.
        lowered: Linear layers → their copies in lower precision, which are used in their place.
    """

    linears: Sequence[nn.Linear]
    activations: Sequence[nn.Module]
    is_shared: bool
    is_packed: bool
    lowered: Mapping[nn.Linear, nn.Linear] = field(default_factory=dict)

    @classmethod
    def of(cls, model: nn.Module) -> Self:
        """Return the tiles of an encoder, and store its linear weights in column-major order.

        Products with few rows then read them sequentially: half to three quarters of the time.
        """
        modules = list(model.modules())
        linears = [
            m for m in modules if isinstance(m, nn.Linear) and type(m).forward is nn.Linear.forward
        ]
        for linear in linears:
            # The same numbers in another order in memory: no digest sees it.
            linear.weight.data = linear.weight.data.t().contiguous().t()
        config: Any = model.config
        is_shared = _is_row_by_row(config)
        return cls(
            linears=linears,
            activations=[m for m in modules if _is_activation(m)],
            is_shared=is_shared,
            is_packed=is_shared and config.model_type in PLACED_FROM_ZERO,
        )

    def rows(self, tokens: int, *, most: int) -> int:
        """Return how many texts with this number of tokens share a pass."""
        return max(1, min(most, PASS_TOKENS // tokens)) if self.is_shared else 1

    @contextmanager
    def applied(
        self, tile: int, *, sections: Sections = (), runs: Sequence[Run] | None = None
    ) -> Iterator[None]:
        """Compute the passes of a ``with`` block in tiles.

        Gradients are not supported. The caller must keep other threads from using the model.

        Args:
            tile: The rows of a tile.
            sections: For a pack: its number of rows and of rows in a tile, section by section.
            runs: For a pack: its texts; by default each row of the batch is one text.
        """
        # For a pack of one tile, the unmodified layer computes the same, of one row also on oneDNN;
        # unless it is so narrow that a product of its own is wider.
        is_one = [*sections] == [(tile, tile)] and (tile == 1 or not ONEDNN) and not self.lowered
        # Autocast applies to the layers' own products, not to ours; it guarantees no bits.
        linears = (
            ()
            if torch.is_autocast_enabled("cpu")
            else [m for m in self.linears if not is_one or _is_odd(m.out_features)]
        )
        # Bypass nn.Module.__setattr__, which costs more than a small product.
        for linear in linears:
            lowered = self.lowered.get(linear)
            linear.__dict__["forward"] = (
                _tiled(linear, tile, sections) if lowered is None else _whole(lowered)
            )
        for activation in self.activations:
            activation.__dict__["forward"] = _text_by_text(activation, runs)
        try:
            yield
        finally:
            for module in (*linears, *self.activations):
                del module.__dict__["forward"]  # restores the method of the class


def _tiled(linear: nn.Linear, tile: int, sections: Sections) -> Forward:
    """Return the forward function of a layer over ``(…, D)`` that processes rows in tiles."""
    weight, bias = linear.weight, linear.bias
    total = sum(count for count, _ in sections)

    def forward(x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        count = rows.shape[0]  # len() of a tensor runs Python code: 150 calls in a pass
        parts = sections if count == total else [(-(-count // tile) * tile, tile)]
        # Padded rows are products too, and thrown away: that is what a fixed shape costs.
        if filling := sum(n for n, _ in parts) - count:
            rows = torch.constant_pad_nd(rows, (0, 0, 0, filling))
        out = _products(rows, parts, weight, bias)
        return out[:count].view(*x.shape[:-1], -1)

    return forward


def _whole(lowered: nn.Linear) -> Forward:
    """Return the forward function of a layer in lower precision, over ``(…, D)``.

    The order of summation over D is independent of the number of rows (`EngineEncoder.hold_to`).
    """
    weight, bias = lowered.weight, lowered.bias

    def forward(x: Tensor) -> Tensor:
        rows = x.to(weight.dtype)
        out: Tensor = torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", [], "")
        return out.to(x.dtype)

    return forward


def tiled(rows: Tensor, tile: int, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x Wᵀ + b of rows ``(N, D)``, computed in tiles as in a layer."""
    count = len(rows)
    if filling := -count % tile:
        rows = torch.constant_pad_nd(rows, (0, 0, 0, filling))
    return _products(rows, [(count + filling, tile)], weight, bias)[:count]


def _products(rows: Tensor, sections: Sections, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x Wᵀ + b of rows ``(N, D)``, tile by tile."""
    # A single tile, as for most queries: no tensor to collect parts in.
    if rows.shape[0] == sections[0][1]:
        return _product(rows, weight, bias)
    out = rows.new_empty(rows.shape[0], weight.shape[0])
    sizes = [count for count, _ in sections]
    for x, y, (_, tile) in zip(
        torch.split(rows, sizes), torch.split(out, sizes), sections, strict=True
    ):
        for part, place in zip(torch.split(x, tile), torch.split(y, tile), strict=True):
            _product_into(place, part, weight, bias)
    return out


def _product_into(out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """Write x Wᵀ + b of a tile into `out`, bitwise identical to `_product`."""
    if _is_onednn(x, weight) or _is_odd(weight.shape[0]):
        out.copy_(_product(x, weight, bias))
    elif bias is None:
        torch.mm(x, weight.t(), out=out)
    else:
        torch.addmm(bias, x, weight.t(), out=out)


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x Wᵀ + b of a tile, ``(M, D)`` → ``(M, N)``."""
    if _is_odd(weight.shape[0]):
        # Wider by zeros, until whole lines are read: then no row's bits depend on its place.
        columns, filling = len(weight), -len(weight) % COLUMNS
        weight = torch.constant_pad_nd(weight, (0, 0, 0, filling))
        bias = None if bias is None else torch.constant_pad_nd(bias, (0, filling))
        return _product(x, weight, bias)[:, :columns].contiguous()
    if not _is_onednn(x, weight):
        return functional.linear(x, weight, bias)
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return out


def _is_odd(columns: int) -> bool:
    """Return whether a product is so narrow that a row's bits depend on its place in the tile."""
    return columns < LINE and columns % COLUMNS > 0


def _is_onednn(x: Tensor, weight: Tensor) -> bool:
    return ONEDNN and x.shape[0] > 1 and weight.numel() >= ONEDNN_FROM


def _text_by_text(activation: nn.Module, runs: Sequence[Run] | None) -> Forward:
    """Return the forward function of an activation, applied to one text at a time.

    Its input is a batch ``(B, …)``, or a pack ``(1, N, …)``.
    """
    plain: Callable[[nn.Module, Tensor], Tensor] = type(activation).forward

    def forward(x: Tensor) -> Tensor:
        # With whole SIMD vectors on one thread there is no remainder, wherever a text begins.
        if x.shape[-1] % VECTORS == 0 and x.is_contiguous() and torch.get_num_threads() == 1:
            return plain(activation, x)
        if runs is not None:
            out = torch.zeros_like(x)
            for run in runs:
                for text, place in zip(run.of(x[0]), run.of(out[0]), strict=True):
                    place.copy_(plain(activation, text[None])[0])
            return out
        if len(x) == 1:
            return plain(activation, x)
        return torch.stack([plain(activation, text) for text in x])

    return forward


def _is_activation(module: nn.Module) -> bool:
    homes = {"torch.nn.modules.activation", "transformers.activations"}
    return type(module).__module__ in homes and not any(True for _ in module.parameters())


def _is_row_by_row(config: Any) -> bool:
    """Return whether all kernels of an encoder are known to compute rows independently."""
    # A sliding window takes another kernel of attention, which was not checked.
    if config.model_type not in ROW_BY_ROW or getattr(config, "sliding_window", None) is not None:
        return False
    heads = config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    fused = getattr(config, "_attn_implementation", "sdpa") == "sdpa"
    # MKL splits a single head among threads, and its bits depend on how a head is aligned.
    return fused and heads > 1 and width % LINE == 0
