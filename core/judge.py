"""Judge a composition on labelled rows: who had a say, and who was right.

A few hundred rows at a time: probabilities of 64,000 rows over 20,000 labels would be 5 GB.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .composed import Composed
from .pieces import pieces
from .rows import Row

__all__ = ["Judged", "judge", "judge_oracle"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Judged:
    """What a composition did with N labelled rows.

    Attributes:
        hits: Whether each row was answered rightly, ``(N,)`` of 0.0 and 1.0.
        usage: Mean weight of every column, ``(K,)``, float64.
        heaviest: The column that had most to say, ``(N,)``.
    """

    hits: Tensor
    usage: Tensor
    heaviest: Tensor


def judge(composed: Composed, h: Tensor, rows: Sequence[Row]) -> Judged:
    """Let a composition answer rows as it answers anybody.

    Args:
        composed: The composition.
        h: Features of the rows, ``(N, D)``.
        rows: The rows.
    """
    bus, hits, heaviest = composed.bus, [], []
    total = torch.zeros(len(bus.columns), dtype=torch.float64)
    with torch.inference_mode():
        for piece in pieces(len(rows), cost=_cost(composed)):
            p, alpha = bus(h[piece])
            hits.append(bus.task.right(p, rows[piece], bus.labels))
            heaviest.append(alpha.argmax(-1))
            total += alpha.double().sum(0)
    return Judged(
        hits=torch.cat(hits), usage=total / max(len(rows), 1), heaviest=torch.cat(heaviest)
    )


def judge_oracle(composed: Composed, h: Tensor, rows: Sequence[Row]) -> Tensor:
    """Return whether each row's own expert, alone, answers it rightly, ``(N,)``."""
    bus, hits = composed.bus, []
    with torch.inference_mode():
        for piece in pieces(len(rows), cost=_cost(composed)):
            weights = composed.oracle_weights(rows[piece])
            p = bus.probabilities(h[piece], bus.norm(h[piece]), weights)
            hits.append(bus.task.right(p, rows[piece], bus.labels))
    return torch.cat(hits)


def _cost(composed: Composed) -> int:
    """Return how many numbers a row needs at once: labels, or Δ of everybody who may speak."""
    bus = composed.bus
    return max(bus.answers, len(bus.ids) * composed.backbone.width)
