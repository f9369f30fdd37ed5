"""Many low-rank experts as two matrix products, instead of two per expert.

Σ_i α_i V_i σ(U_i z + u_i) + α_i v_i: the rows of all U_i stand under each other, the columns of
all V_i beside each other, and α scales the hidden units between them. The cost grows with the
total rank, and a unit of rank costs the same whoever it belongs to.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from .experts import ACTIVATIONS, Expert, LowRank

__all__ = ["LowRankStack"]


class LowRankStack(nn.Module):
    """The weighted sum of low-rank experts, one product for all U and one for all V.

    Args:
        parts: The experts by column index.
    """

    def __init__(self, parts: Mapping[int, LowRank]) -> None:
        super().__init__()
        columns = sorted(parts, key=lambda i: (parts[i].activation, i))
        stacked = [parts[i] for i in columns]
        ranks = [p.U.shape[0] for p in stacked]
        owner = [i for i, r in zip(columns, ranks, strict=True) for _ in range(r)]
        # Copies, so that the pass is contiguous; buffers, so that no optimiser can find them.
        self.register_buffer("U", torch.cat([p.U.detach() for p in stacked]))
        self.register_buffer("u", torch.cat([p.inner_bias() for p in stacked]))
        self.register_buffer("V", torch.cat([p.V.detach() for p in stacked], dim=1))
        self.register_buffer("v", torch.stack([p.outer_bias() for p in stacked]))
        self.register_buffer("owner", torch.tensor(owner, device=self.U.device))
        self.register_buffer("column", torch.tensor(columns, device=self.U.device))
        self.activations = _runs([p.activation for p in stacked], ranks)

    U: Tensor
    u: Tensor
    V: Tensor
    v: Tensor
    owner: Tensor
    column: Tensor

    @classmethod
    def of(cls, parts: Mapping[int, Expert]) -> LowRankStack | None:
        """Stack those of `parts` that are low-rank; return None where there are none."""
        low_rank = {i: p for i, p in parts.items() if isinstance(p, LowRank)}
        return cls(low_rank) if low_rank else None

    def forward(self, z: Tensor, alpha: Tensor) -> Tensor:
        """Return Σ_i α_i Δ_i(z), ``(B, out)``, for z ``(B, D)`` and α ``(B, K)``."""
        units = nn.functional.linear(z, self.U, self.u)  # (B, ΣR)
        active = [ACTIVATIONS[name](units[:, a:b]) for name, a, b in self.activations]
        hidden = active[0] if len(active) == 1 else torch.cat(active, dim=1)
        return (hidden * alpha[:, self.owner]) @ self.V.T + alpha[:, self.column] @ self.v


def _runs(names: list[str], ranks: list[int]) -> tuple[tuple[str, int, int], ...]:
    """Return (activation, first unit, past the last unit) for each run of one activation."""
    runs: list[tuple[str, int, int]] = []
    start = 0
    for name, rank in zip(names, ranks, strict=True):
        if runs and runs[-1][0] == name:
            runs[-1] = (name, runs[-1][1], start + rank)
        else:
            runs.append((name, start, start + rank))
        start += rank
    return tuple(runs)
