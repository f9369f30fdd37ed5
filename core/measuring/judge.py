"""Judge a composition on labelled rows: who had a say, and who was right.

A few hundred rows at a time: probabilities of 64,000 rows over 20,000 labels would be 5 GB.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..answering.composed import Composed
from ..pieces import pieces
from ..rows import Row
from ..tasks import Generation

__all__ = ["Judged", "Told", "judge", "judge_oracle", "read_off", "together"]


TINY = 1e-30
"""A probability of nothing counts as this much."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Told:
    """What a system makes of N rows: hits and nats, as `Judged` has them."""

    hits: Tensor
    nats: Tensor | None


@dataclass(frozen=True, kw_only=True, eq=False)
class Judged:
    """What a composition did with N labelled rows.

    Attributes:
        hits: Whether each row was answered rightly, ``(N,)`` of 0.0 and 1.0.
        nats: −log p of each row's next token, ``(N,)``; None where no text is generated.
        usage: Mean weight of every column, ``(K,)``, float64.
        heaviest: The column that had most to say, ``(N,)``.
    """

    hits: Tensor
    nats: Tensor | None
    usage: Tensor
    heaviest: Tensor


def judge(composed: Composed, h: Tensor, rows: Sequence[Row]) -> Judged:
    """Let a composition answer rows as it answers anybody.

    Args:
        composed: The composition.
        h: Features of the rows, ``(N, D)``.
        rows: The rows.
    """
    bus, told, heaviest = composed.bus, [], []
    total = torch.zeros(len(bus.columns), dtype=torch.float64)
    with torch.inference_mode():
        for piece in pieces(len(rows), cost=_cost(composed)):
            p, alpha = bus(h[piece])
            told.append(read_off(composed, p, rows[piece]))
            heaviest.append(alpha.argmax(-1))
            total += alpha.double().sum(0)
    read = together(told)
    return Judged(
        hits=read.hits,
        nats=read.nats,
        usage=total / max(len(rows), 1),
        heaviest=torch.cat(heaviest),
    )


def judge_oracle(composed: Composed, h: Tensor, rows: Sequence[Row]) -> Told:
    """Return what each row's own expert, alone, does with it; h is ``(N, D)``."""
    bus, told = composed.bus, []
    with torch.inference_mode():
        for piece in pieces(len(rows), cost=_cost(composed)):
            weights = composed.oracle_weights(rows[piece])
            p = bus.probabilities(h[piece], bus.norm(h[piece]), weights)
            told.append(read_off(composed, p, rows[piece]))
    return together(told)


def read_off(composed: Composed, p: Tensor, rows: Sequence[Row]) -> Told:
    """Return what an output ``(N, L)`` makes of rows."""
    task = composed.bus.task
    hits = task.right(p, rows, composed.bus.labels)
    if not isinstance(task, Generation):
        return Told(hits=hits, nats=None)
    target = task.targets([r.label for r in rows])
    return Told(hits=hits, nats=-p.gather(1, target[:, None])[:, 0].clamp_min(TINY).double().log())


def together(told: Sequence[Told]) -> Told:
    """Return several pieces as one."""
    nats = [t.nats for t in told if t.nats is not None]
    return Told(hits=torch.cat([t.hits for t in told]), nats=torch.cat(nats) if nats else None)


def _cost(composed: Composed) -> int:
    """Return how many numbers a row needs at once: labels, or Δ of everybody who may speak."""
    bus = composed.bus
    return max(bus.answers, len(bus.ids) * composed.backbone.width)
