"""What was said before: the only memory of a causal router.

    m_t = β m_t-1 + z_t,   w_t = β w_t-1 + 1,   c_t = m_t / w_t,   β = 1 − 1/horizon

c_t is the mean of the bus vectors up to token t, the last `horizon` of them mostly: a short one
follows a text that changes its domain, a long one is sure. z_t and the c_t of every horizon are
what γ(k | x_≤t) is computed from, so that a token never hears of a later one. A step costs D
numbers a horizon; a whole text takes the same steps, in the same order, and has the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from ..layout import ROUTER, Chunk, Layout

__all__ = ["HORIZONS", "Memory", "context_layout", "contexts", "remember"]

HORIZONS = (8, 64)
"""In tokens; other lengths were not tried."""


@dataclass(frozen=True, eq=False)
class Memory:
    """The sums so far.

    Attributes:
        sums: m by horizon, ``(S, D)``.
        counts: w by horizon, ``(S, 1)``.
        keep: β by horizon, ``(S, 1)``.
    """

    sums: Tensor
    counts: Tensor
    keep: Tensor

    @classmethod
    def empty(cls, width: int) -> Memory:
        """Return the memory of nothing."""
        count = len(HORIZONS)
        keep = 1 - 1 / torch.tensor(HORIZONS, dtype=torch.float32)[:, None]
        return cls(torch.zeros(count, width), torch.zeros(count, 1), keep)


def remember(memory: Memory, z: Tensor) -> tuple[Memory, Tensor]:
    """Take note of one bus vector ``(D,)``; return the memory after it and c ``(S·D,)``."""
    keep = memory.keep
    after = Memory(keep * memory.sums + z, keep * memory.counts + 1, keep)
    return after, (after.sums / after.counts).flatten()


def contexts(h: Tensor, *, eps: float) -> Tensor:
    """Return c ``(T, S·D)`` of the states ``(T, D)`` of one text.

    Args:
        h: The states, in order.
        eps: ε of the bus norm.
    """
    z = nn.functional.layer_norm(h, h.shape[-1:], eps=eps)
    start = Memory.empty(h.shape[-1])
    sums = z[:, None].repeat(1, len(start.keep), 1)  # (T, S, D)
    counts = z.new_ones(len(z), len(start.keep), 1)
    for before, rows in ((start.sums, sums), (start.counts, counts)):
        for older, row in pairwise((before, *rows)):
            row += start.keep * older  # noqa: PLW2901  (in place: the next one starts from it)
    return (sums / counts).flatten(1)


def context_layout(width: int) -> Layout:
    """Return h̃ = [ h | c ], of which experts read z and the router all."""
    context = Chunk(
        key=f"context {HORIZONS}",
        width=len(HORIZONS) * width,
        normalised=False,
        compute=None,
        readers=(ROUTER,),
    )
    return Layout(width=width, chunks=(context,))
