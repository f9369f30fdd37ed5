"""Passes in which a text's bits are its own, without batches filled with copies.

The bits of a row of a matrix product depend on how many rows it has. So the rows of a pass go
through every linear layer in tiles, of a size that the text's own length decides:

    rows of a tile = T, rounded up to a multiple of 16     T: tokens of each text of the pass

The last tile is filled with zeros: a pass wastes less than one. Texts of one pass have the same
length, so there is no padding between them. What else mixes rows was looked at kernel by kernel:

    layer norm, sums over D     row by row
    activations                 vectors of 8 or 16 numbers and a rest, with other bits: text by text
    fused attention             head by head; but MKL's bits follow the alignment of a head's start,
                                and one head alone is shared out among threads: so only of
                                several heads, of whole cache lines each
    anything else               unknown: a pass for each text (`is_shared`)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

TILE = 16
"""The smallest tile: on the CPUs tried, 16 rows take as long as 10 of a plain product."""

PASS_TOKENS = 512
"""About so many tokens of a pass: enough to fill it, and its states stay in the CPU's cache."""

ROW_BY_ROW = frozenset({"bert", "llama", "qwen2", "qwen3", "roberta"})
"""Architectures made of the kernels above; property tests hold each to the promise."""

KERNELS = "tiles 2"
"""Names what the bits of a pass come from: part of what identifies a stored feature."""

LINE = 16
"""Float32 numbers of a cache line."""

ONEDNN_FROM = 2**16
"""Weights from which oneDNN's product pays its call."""

_CPU = getattr(torch.cpu, "get_capabilities", dict[str, str])()

ONEDNN = torch._C._has_mkldnn and not str(_CPU.get("cpu_name", "")).startswith("Intel")
"""Whether oneDNN's product is taken: of a tile it is faster than MKL's, but not on Intel's CPUs."""

Forward = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True, eq=False)
class Tiles:
    """How an encoder's passes are computed on a CPU.

    Attributes:
        linears: Its linear layers.
        activations: Its modules that change numbers one by one.
        is_shared: Whether texts of one length may share a pass.
    """

    linears: Sequence[nn.Linear]
    activations: Sequence[nn.Module]
    is_shared: bool

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
        return cls(
            linears=linears,
            activations=[m for m in modules if _is_activation(m)],
            is_shared=_is_row_by_row(model.config),
        )

    def rows(self, tokens: int, *, most: int) -> int:
        """Return how many texts of so many tokens share a pass."""
        return max(1, min(most, PASS_TOKENS // tokens)) if self.is_shared else 1

    @contextmanager
    def applied(self, tokens: int) -> Iterator[None]:
        """Compute the passes of a ``with`` block in tiles, of texts of so many tokens each.

        Nothing here has gradients. The caller keeps other threads away from the model.
        """
        tile = -(-tokens // TILE) * TILE if tokens > 1 else 1
        # Past nn.Module's own __setattr__, which costs more than a small product.
        for linear in self.linears:
            linear.__dict__["forward"] = _tiled(linear, tile)
        for activation in self.activations:
            activation.__dict__["forward"] = _text_by_text(activation)
        try:
            yield
        finally:
            for module in (*self.linears, *self.activations):
                del module.__dict__["forward"]  # the class's own shows again


def _tiled(linear: nn.Linear, tile: int) -> Forward:
    """Return the layer over numbers ``(…, D)`` whose rows go through in tiles."""
    weight, bias = linear.weight, linear.bias

    def forward(x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        count, width = rows.shape
        if count % tile:
            rows = torch.constant_pad_nd(rows, (0, 0, 0, -count % tile))
        parts = rows.view(-1, tile, width).unbind()
        made = [_product(part, weight, bias) for part in parts]
        out = made[0] if len(made) == 1 else torch.cat(made)
        return out[:count].view(*x.shape[:-1], -1)

    return forward


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x Wᵀ + b of a tile, ``(M, D)`` → ``(M, N)``."""
    if len(x) == 1 or weight.numel() < ONEDNN_FROM or not ONEDNN:
        return functional.linear(x, weight, bias)
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return out


def _text_by_text(activation: nn.Module) -> Forward:
    """Return the activation over numbers of texts ``(B, …)``, one text at a time."""
    plain: Callable[[nn.Module, Tensor], Tensor] = type(activation).forward

    def forward(x: Tensor) -> Tensor:
        if len(x) == 1:
            return plain(activation, x)
        return torch.stack([plain(activation, text) for text in x])

    return forward


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
