"""The residual sum on the probable answers of a row: what a causal router is trained on.

    log p(y | α) = ℓ_y(α) − log( Σ_c exp ℓ_c(α) + exp r(α) )
    ℓ(α) = W_c h + Σ_k α_k W_c Δ_k       on the answer and M candidates c
    r(α) = r_0 + Σ_k α_k (r_k − r_0)     for all other answers

r_k is the log-sum-exp over all other answers with column k alone at weight 1. The sum is thus exact
where one column has all the weight, and for other weights exact in the logits of the answer and the
candidates. A vocabulary of fifty thousand is reduced once to M + 2 numbers per column; a training
step is then as cheap as one on a mixture.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from redhost.core.bus.bus import BACKBONE, Bus

__all__ = ["CANDIDATES", "TruncatedLogits", "concat_logits", "truncate_logits"]

CANDIDATES = 32
"""M, the number of candidate answers of a row."""


@dataclass(frozen=True, eq=False)
class TruncatedLogits:
    """The truncated logits of N rows.

    Attributes:
        base: ℓ at α = 0 of the answer, then of the candidates, ``(N, M + 1)``.
        deltas: W_c Δ_k at the same places, ``(N, K, M + 1)``; zeros for the backbone's column.
        rest: r_0, ``(N,)``.
        shift: r_k − r_0, ``(N, K)``.
    """

    base: Tensor
    deltas: Tensor
    rest: Tensor
    shift: Tensor

    def __len__(self) -> int:
        return len(self.base)

    def __getitem__(self, rows: Tensor) -> TruncatedLogits:
        """Return some rows."""
        return TruncatedLogits(
            self.base[rows], self.deltas[rows], self.rest[rows], self.shift[rows]
        )

    def log_p(self, alpha: Tensor) -> Tensor:
        """Return log p(y | α) ``(N,)`` for weights ``(N, K)``."""
        logits = self.base + torch.einsum("nk,nkm->nm", alpha, self.deltas)
        rest = self.rest + (alpha * self.shift).sum(1)
        return logits[:, 0] - torch.logaddexp(logits.logsumexp(1), rest)

    def alone(self) -> Tensor:
        """Return log p_k(y) of each column alone, ``(N, K)``: exact."""
        logits = self.base[:, None] + self.deltas
        rest = self.rest[:, None] + self.shift
        return logits[..., 0] - torch.logaddexp(logits.logsumexp(-1), rest)


def truncate_logits(
    bus: Bus, h: Tensor, z: Tensor, target: Tensor, *, candidates: int = CANDIDATES
) -> TruncatedLogits:
    """Truncate the logits of rows of a bus whose experts all share the classifier.

    Args:
        bus: The experts; its router is not used.
        h: Features ``(N, D)``, or h̃.
        z: Their bus vectors.
        target: The rows' answers, by number, ``(N,)``.
        candidates: M.
    """
    base = bus.logits(h, z, z.new_zeros(len(z), len(bus.columns)))  # (N, V)
    each = [
        base if c == BACKBONE else bus.logits(h, z, bus.only(z, k))
        for k, c in enumerate(bus.columns)
    ]
    most = min(candidates, bus.answers - 2)  # a small vocabulary must leave a rest
    places = torch.cat([target[:, None], _likely(each, target, most)], dim=1)  # (N, M + 1)
    at = base.gather(1, places)
    rest = _rest(base, places)
    return TruncatedLogits(
        base=at,
        deltas=torch.stack([x.gather(1, places) - at for x in each], dim=1),
        rest=rest,
        shift=torch.stack([_rest(x, places) - rest for x in each], dim=1),
    )


def concat_logits(parts: Sequence[TruncatedLogits]) -> TruncatedLogits:
    """Return truncated logits of several batches as one."""
    return TruncatedLogits(
        base=torch.cat([p.base for p in parts]),
        deltas=torch.cat([p.deltas for p in parts]),
        rest=torch.cat([p.rest for p in parts]),
        shift=torch.cat([p.shift for p in parts]),
    )


def _likely(each: Sequence[Tensor], target: Tensor, count: int) -> Tensor:
    """Return the answers most probable under any column, ``(N, M)``, without the right one."""
    most = torch.full_like(each[0], -torch.inf)
    for logits in each:
        torch.maximum(most, logits.log_softmax(1), out=most)
    most.scatter_(1, target[:, None], -torch.inf)  # it is listed separately
    return most.topk(count).indices


def _rest(logits: Tensor, places: Tensor) -> Tensor:
    """Return the log-sum-exp over all other places, ``(N,)``."""
    log_p = logits.log_softmax(1)  # an eighth of the time of logsumexp for 50,000 answers
    whole = (logits[:, :1] - log_p[:, :1]).squeeze(1)
    left = log_p.scatter_(1, places, -torch.inf).exp_().sum(1)
    return whole + left.clamp_min(torch.finfo(left.dtype).tiny).log()
