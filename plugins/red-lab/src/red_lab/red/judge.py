"""Metrics of a system: exact answers, accuracy by range, routing errors, swapped terms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from red_lab.red.experts import NAMES, Outputs
from red_lab.red.queries import LABELS, Query, boundary

__all__ = ["answers", "distances", "flipped", "hits", "judge", "swaps", "worst_case"]


def answers(p: Tensor) -> list[str]:
    """Return the most probable label of each row of ``(N, C)``."""
    return [LABELS[int(i)] for i in p.argmax(-1)]


def hits(p: Tensor, queries: Sequence[Query]) -> Tensor:
    """Return for each row whether the answer is correct, ``(N,)`` of 0.0 and 1.0."""
    target = torch.tensor([LABELS.index(q.label) for q in queries])
    return (p.argmax(-1) == target).double()


def judge(p: Tensor, queries: Sequence[Query]) -> dict[str, Any]:
    """Return every metric of one system's answers ``(N, C)``.

    ``macro`` is the mean over ranges. ``macro_f1`` is the mean over the classes present; over all
    99 classes the value within one range could not exceed a fifth (seed 001, contradiction 19).
    """
    right = hits(p, queries)
    domains = {n: _mean(right, [q.domain == n for q in queries]) for n in NAMES}
    known = [v for v in domains.values() if v is not None]
    return {
        "overall": float(right.mean()),
        "domains": domains,
        "macro": sum(known) / len(known),
        "worst": min(known),
        "boundary": _mean(right, [boundary(q) for q in queries]),
        "macro_f1": _macro_f1(answers(p), [q.label for q in queries]),
        "swap_consistency": swaps(answers(p), queries),
        "distances": distances(answers(p), queries),
    }


def distances(answered: Sequence[str], queries: Sequence[Query]) -> dict[str, int]:
    """Return the number of answers by their distance from the true answer."""
    counts = Counter(
        abs(int(answer) - int(query.label)) for answer, query in zip(answered, queries, strict=True)
    )
    return {str(distance): count for distance, count in sorted(counts.items())}


def swaps(answered: Sequence[str], queries: Sequence[Query]) -> float | None:
    """Return how often rearranged questions get the same answer; None if there are none."""
    groups: dict[str, dict[str, str]] = {}
    for answer, query in zip(answered, queries, strict=True):
        groups.setdefault(query.cluster, {})[query.text] = answer
    pairs = [list(g.values()) for g in groups.values() if len(g) > 1]
    if not pairs:
        return None
    return float(np.mean([len(set(g)) == 1 for g in pairs]))


def flipped(alpha: Tensor, share: float, *, seed: int) -> Tensor:
    """Return α with each row sent to a random expert with probability q, as in the seed."""
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.rand(len(alpha), generator=generator) < share
    other = torch.randint(alpha.shape[1], (len(alpha),), generator=generator)
    one = torch.nn.functional.one_hot(other, alpha.shape[1]).to(alpha.dtype)
    return torch.where(chosen[:, None], one, alpha)


def worst_case(
    outputs: Outputs, alpha: Tensor, share: float, queries: Sequence[Query], *, residual: bool
) -> float:
    """Return the exact accuracy when an adversary moves mass q of every row's α.

    α' = (1 − q) α + q β for any β on the simplex. Every margin of the true class is linear in β,
    so its minimum lies at a vertex: a row survives if it is answered correctly at all E vertices.
    """
    survived = torch.ones(len(alpha), dtype=torch.float64)
    for k in range(alpha.shape[1]):
        vertex = torch.zeros_like(alpha)
        vertex[:, k] = share
        moved = (1 - share) * alpha + vertex
        p = outputs.residual(moved) if residual else outputs.mixture(moved)
        survived *= hits(p, queries)
    return float(survived.mean())


def _mean(values: Tensor, mask: Sequence[bool]) -> float | None:
    chosen = values[torch.tensor(mask)]
    return float(chosen.mean()) if len(chosen) else None


def _macro_f1(answered: Sequence[str], true: Sequence[str]) -> float:
    right = Counter(y for answer, y in zip(answered, true, strict=True) if answer == y)
    given, expected = Counter(answered), Counter(true)
    return float(np.mean([2 * right[y] / (n + given[y]) for y, n in expected.items()]))
