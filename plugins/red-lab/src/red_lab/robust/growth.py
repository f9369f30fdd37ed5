"""Worst regret of the robust router over the rows it learns from, and over its size."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from red_lab.robust.gates import linear_gate, mlp_gate, train_gate
from red_lab.robust.traffic import Traffic
from redhost.robust import mixture_losses

__all__ = ["ROWS", "UNITS", "growth"]

ROWS = (10, 30, 100, 300, 1000)
"""Rows of each domain."""

UNITS = (0, 8, 64, 512)
"""Units of the hidden layer; 0 is the linear gate."""

MIDDLE = 100


def growth(traffic: Traffic, *, seed: int) -> dict[str, list[dict[str, Any]]]:
    """Return worst regrets, on the rows learnt from and on test rows, for both curves."""
    most = min(map(len, traffic.even))
    sizes = [n for n in ROWS if n <= most]
    return {
        "rows": [_point(traffic, rows=n, units=0, seed=seed) for n in sizes],
        "units": [_point(traffic, rows=min(MIDDLE, most), units=u, seed=seed) for u in UNITS],
    }


def _point(traffic: Traffic, *, rows: int, units: int, seed: int) -> dict[str, Any]:
    parts = [p.some(rows, seed=seed) for p in traffic.even]
    learnt = traffic.judged(parts)
    gate: nn.Module
    gate = mlp_gate(traffic, hidden=units, seed=seed) if units else linear_gate(traffic)
    count = len(parts)
    train_gate(gate, traffic, learnt, start=torch.full((count,), 1 / count), moves=True, seed=seed)
    tests = traffic.judged(traffic.by_domain(traffic.problem.test))
    told = {}
    for name, judged in (("train", learnt), ("test", tests)):
        own = torch.stack([-log_p[:, k].mean() for k, (_, log_p) in enumerate(judged)])
        with torch.no_grad():
            told[name] = float((mixture_losses(gate, judged) - own).max())
    return {"rows": rows, "units": units, **told}
