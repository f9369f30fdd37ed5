"""Time systems against the plain forward pass; no compared library is imported here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from red_lab.bench.rounds import in_pairs, overhead, share, spread

__all__ = ["BATCHES", "Pass", "compare"]

BATCHES = (1, 8, 64)
MOST_RUNS = 3
"""Small batches are fast, so they get this many times the rounds of the largest."""

Pass = Callable[[Tensor], Tensor]
"""Token ids ``(B, T)`` → logits ``(B, C)``."""


def compare(
    floor: Pass,
    passes: Mapping[str, Pass],
    ids: Tensor,
    *,
    rounds: int,
    apart: Mapping[str, Pass] | None = None,
    batches: Sequence[int] = BATCHES,
) -> dict[str, Any]:
    """Time systems, each directly after the plain forward pass, batch by batch.

    Args:
        floor: The plain forward pass.
        passes: Whole passes; their overhead is relative to the floor.
        ids: Token ids ``(N, T)``.
        rounds: Number of counted rounds for the largest batch.
        apart: Parts of a pass; their overhead is their own time as a fraction of the floor's.
        batches: Rows of a pass.
    """
    parts = dict(apart or {})
    systems: dict[str, Any] = {name: {} for name in ("floor", *passes, *parts)}
    for batch in batches:
        times = MOST_RUNS if batch < max(batches) else 1
        with torch.inference_mode():
            rows = ids[:batch]
            work = {name: partial(run, rows) for name, run in {**passes, **parts}.items()}
            seconds = in_pairs(partial(floor, rows), work, rounds=times * rounds)
        floors = [took for before, _ in seconds.values() for took in before]
        systems["floor"][str(batch)] = {"seconds": spread(floors)}
        for name, (before, values) in seconds.items():
            beside = share if name in parts else overhead
            systems[name][str(batch)] = {
                "seconds": spread(values),
                "overhead": beside(values, before),
            }
    return {"systems": systems, "threads": torch.get_num_threads(), "tokens": int(ids.shape[1])}
