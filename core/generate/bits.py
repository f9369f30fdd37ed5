"""Bits per byte: how well text is told, whatever the tokenizer; less is better.

Σ over tokens of −log2 p(x_t | x_<t)  /  bytes of UTF-8 the tokens stand for
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from torch import Tensor

from ..rows import Row

__all__ = ["bits_per_byte"]


def bits_per_byte(nats: Tensor, rows: Sequence[Row], told: Mapping[str, int]) -> dict[str, float]:
    """Return bits per byte by domain, in sorted order; rows without a domain count nowhere.

    Args:
        nats: −log p of each token, ``(N,)``.
        rows: The tokens' rows.
        told: Bytes by domain.
    """
    total = dict.fromkeys(sorted({r.domain for r in rows if r.domain is not None}), 0.0)
    for row, value in zip(rows, nats.tolist(), strict=True):
        if row.domain is not None:
            total[row.domain] += value
    return {domain: value / math.log(2) / told[domain] for domain, value in total.items()}
