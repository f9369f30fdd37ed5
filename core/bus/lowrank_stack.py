"""Many low-rank experts as two matrix products, instead of two per expert.

Σ_i α_i V_i σ(U_i z + u_i) + α_i v_i: the rows of all U_i are concatenated, as are those of all
V_iᵀ, and α scales the hidden units in between. The cost grows with the total rank of all experts
together. If only k columns have a weight, their rows are gathered instead: the cost then grows with
k times the largest rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate, groupby, pairwise

import torch
from torch import Tensor, nn

from .experts import ACTIVATIONS, LowRank


class LowRankStack(nn.Module):
    """The weighted sum of low-rank experts, one product for all U and one for all V.

    Args:
        parts: The experts by column index.
    """

    def __init__(self, parts: Mapping[int, LowRank]) -> None:
        super().__init__()
        # By activation first: each σ then applies to one contiguous range of units.
        self.columns = tuple(sorted(parts, key=lambda i: (parts[i].activation, i)))
        stacked = [parts[i] for i in self.columns]
        ranks = [p.U.shape[0] for p in stacked]
        owner = [i for i, r in zip(self.columns, ranks, strict=True) for _ in range(r)]
        # Copies, so that memory is contiguous; buffers, so that no optimiser updates them.
        inner, outer = zip(*(p.biases() for p in stacked), strict=True)
        self.register_buffer("U", torch.cat([p.U.detach() for p in stacked]))
        self.register_buffer("u", torch.cat(inner))
        self.register_buffer("V", torch.cat([p.V.detach().T for p in stacked]))
        self.register_buffer("v", torch.stack(outer))
        self.register_buffer("owner", torch.tensor(owner, device=self.U.device))
        self.register_buffer("column", torch.tensor(self.columns, device=self.U.device))
        self.spans = tuple(pairwise(accumulate(ranks, initial=0)))
        # The units of each expert (n, max R), −1 past its rank.
        units = [[*range(a, b)] + [-1] * (max(ranks) - b + a) for a, b in self.spans]
        self.register_buffer("units", torch.tensor(units, device=self.U.device))
        placed = zip(stacked, self.spans, strict=True)
        runs = ((name, [*run]) for name, run in groupby(placed, lambda pair: pair[0].activation))
        # Each activation with the range of units that it applies to.
        self.activations = tuple((name, run[0][1][0], run[-1][1][1]) for name, run in runs)

    U: Tensor
    u: Tensor
    V: Tensor
    v: Tensor
    owner: Tensor
    column: Tensor
    units: Tensor

    def forward(self, z: Tensor, alpha: Tensor, *, chosen: int | None = None) -> Tensor:
        """Return Σ_i α_i Δ_i(z), ``(B, out)``.

        Args:
            z: Bus vectors ``(B, D)``.
            alpha: Weights ``(B, K)``.
            chosen: k, if at most k columns have a weight in each row: only their rows of the
                stack are read.
        """
        weights = alpha[:, self.column]  # (B, n)
        if chosen is not None and chosen < len(self.columns):
            return self._gathered(z.to(self.U.dtype), weights, chosen).to(z.dtype)
        units = nn.functional.linear(z.to(self.U.dtype), self.U, self.u)  # (B, ΣR)
        # α scales the hidden units, Σ_i R_i of them: the weighted sum is then one product with V.
        hidden = self._activate(units) * alpha[:, self.owner].to(self.U.dtype)
        return (hidden @ self.V + weights.to(self.v.dtype) @ self.v).to(z.dtype)

    def each(self, z: Tensor) -> dict[int, Tensor]:
        """Return Δ_i(z) ``(B, out)`` of each expert by column, in the order of `columns`."""
        units = self._activate(nn.functional.linear(z.to(self.U.dtype), self.U, self.u))
        return {
            self.columns[n]: torch.addmm(self.v[n], units[:, a:b], self.V[a:b]).to(z.dtype)
            for n, (a, b) in enumerate(self.spans)
        }

    def _activate(self, units: Tensor) -> Tensor:
        """Return σ of all units ``(…, ΣR)``, each with its expert's activation."""
        active = [ACTIVATIONS[name](units[..., a:b]) for name, a, b in self.activations]
        return active[0] if len(active) == 1 else torch.cat(active, dim=-1)

    def _gathered(self, z: Tensor, weights: Tensor, k: int) -> Tensor:
        """Return the sum over the k largest of ``(B, n)``; units past an expert's rank add 0."""
        weight, selected = weights.to(z.dtype).topk(k, dim=-1)  # (B, k)
        rows = self.units[selected]  # (B, k, R), −1 past the rank of the expert
        real = rows >= 0  # a −1 reads the last unit, whose product is set to 0 below
        units = torch.einsum("bkrd,bd->bkr", self.U[rows], z) + self.u[rows]
        hidden = units
        if len(self.activations) == 1:
            hidden = ACTIVATIONS[self.activations[0][0]](units)
        else:
            for name, a, b in self.activations:
                mine = (rows >= a) & (rows < b)
                hidden = torch.where(mine, ACTIVATIONS[name](units), hidden)
        hidden = hidden * weight[..., None] * real
        delta = torch.einsum("bkr,bkro->bo", hidden, self.V[rows])
        return delta + torch.einsum("bk,bko->bo", weight, self.v[selected])
