"""Time systems against the plain forward; no side of the comparison is imported here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from red_lab.bench.rounds import in_turns, overhead, share, spread

__all__ = ["BATCHES", "Pass", "compare"]

BATCHES = (1, 8, 64)
MOST_RUNS = 5
"""Small batches are quick, so they get this many times the rounds of the largest."""

Pass = Callable[[Tensor], Tensor]
"""Token ids ``(B, T)`` → logits ``(B, C)``."""


def compare(
    passes: Mapping[str, Pass],
    ids: Tensor,
    *,
    rounds: int,
    floor: str = "floor",
    apart: Mapping[str, Pass] | None = None,
    batches: Sequence[int] = BATCHES,
) -> dict[str, Any]:
    """Time systems in turns, batch by batch.

    Args:
        passes: Whole passes.
        ids: Token ids ``(N, T)``.
        rounds: How many count, for the largest batch.
        floor: Which pass is the plain forward, over which the others' overhead is.
        apart: Parts of a pass; their overhead is their own time as a share of the floor's.
        batches: Rows of a pass.
    """
    parts = dict(apart or {})
    told: dict[str, Any] = {name: {} for name in (*passes, *parts)}
    for batch in batches:
        times = MOST_RUNS if batch < max(batches) else 1
        with torch.inference_mode():
            rows = ids[:batch]
            work = {name: partial(run, rows) for name, run in {**passes, **parts}.items()}
            seconds = in_turns(work, rounds=times * rounds)
        for name, values in seconds.items():
            beside = share if name in parts else overhead
            told[name][str(batch)] = {
                "seconds": spread(values),
                "overhead": beside(values, seconds[floor]),
            }
    return {"systems": told, "threads": torch.get_num_threads(), "tokens": int(ids.shape[1])}
