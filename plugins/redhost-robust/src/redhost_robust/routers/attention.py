"""The attention router: queries of z, keys of the experts' outputs (Vaswani et al. 2017).

    α = softmax_k( q(z) · k(s_k(z)) / √A ),    q(z) = W_q z + b_q,    k(s) = W_k s̃

s_k holds statistics of column k's output for this input (`output_features` in
`redhost.core.bus.evidence`), and s̃ is s standardised. No weight belongs to a single column, so the
router is invariant to names and order of the columns, and a new column needs no training at all:
level `row` moves nothing.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import torch
from torch import Tensor, nn

from redhost.core.bus.evidence import OUTPUT_FEATURES
from redhost.core.bus.signals import RouterSignals
from redhost.core.routers.base import ColumnData, Router

WIDTH = 16
"""A, the width of queries and keys."""


class AttentionRouter(Router):
    """Scaled dot products of a query of z and keys of the outputs; the query starts at zero."""

    kind = "attention"
    reads = frozenset({"output_features"})

    def __init__(self, *, width: int, columns: tuple[str, ...], seed: int = 0) -> None:
        super().__init__(width=width, columns=columns, seed=seed)
        generator = torch.Generator().manual_seed(seed)
        self.query = nn.Parameter(torch.zeros(WIDTH, width))
        self.query_bias = nn.Parameter(torch.zeros(WIDTH))
        self.key = nn.Parameter(
            torch.randn(WIDTH, OUTPUT_FEATURES, generator=generator) / OUTPUT_FEATURES**0.5
        )
        self.register_buffer("center", torch.zeros(OUTPUT_FEATURES))
        self.register_buffer("spread", torch.ones(OUTPUT_FEATURES))

    center: Tensor
    spread: Tensor

    def forward(self, z: Tensor, signals: RouterSignals | None = None) -> Tensor:
        """Return logits ``(B, K)`` for z ``(B, D)`` and the output features ``(B, K, S)``."""
        if signals is None:  # without experts all columns are equal
            features = z.new_zeros(z.shape[0], len(self.columns), OUTPUT_FEATURES)
        else:
            features = signals.output_features
        query = nn.functional.linear(z, self.query, self.query_bias)  # (B, A)
        keys = ((features - self.center) / self.spread) @ self.key.T  # (B, K, A)
        return (keys @ query[:, :, None]).squeeze(-1) / math.sqrt(WIDTH)

    def prepare(self, columns: Sequence[ColumnData]) -> None:
        """Set mean and spread of the features from all rows."""
        known = [d.signals.output_features for d in columns if d.signals is not None]
        if known:
            features = torch.cat(known).flatten(0, 1)  # (N · K, S)
            self.center.copy_(features.mean(0))
            self.spread.copy_(features.std(0, correction=0).clamp_min(1e-6))

    def copy_columns(self, parent: Router, *, keep: Collection[str]) -> None:
        """Copy all weights: columns share every one of them."""
        super().copy_columns(parent, keep=keep)
        for name, value in parent.named_buffers():
            self.get_buffer(name).copy_(value)

    def column_parameters(self) -> tuple[nn.Parameter, ...]:
        """Return nothing: no weight belongs to a column."""
        return ()
