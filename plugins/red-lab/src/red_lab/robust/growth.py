"""Worst regret of the robust router by the number of training rows, and by its size."""

from __future__ import annotations

from typing import Any

import torch
from redhost_robust import mixture_losses
from torch import nn

from red_lab.robust.gates import linear_gate, mlp_gate, train_gate
from red_lab.robust.traffic import UnevenTraffic

__all__ = ["ROWS", "UNITS", "growth"]

ROWS = (10, 30, 100, 300, 1000)
"""Rows of each domain."""

UNITS = (0, 8, 64, 512)
"""Units of the hidden layer; 0 is the linear gate."""

MIDDLE = 100


def growth(traffic: UnevenTraffic, *, seed: int) -> dict[str, list[dict[str, Any]]]:
    """Return worst regrets on training rows and on test rows, for both curves."""
    most = min(map(len, traffic.even))
    sizes = [n for n in ROWS if n <= most]
    return {
        "rows": [_point(traffic, rows=n, units=0, seed=seed) for n in sizes],
        "units": [_point(traffic, rows=min(MIDDLE, most), units=u, seed=seed) for u in UNITS],
    }


def _point(traffic: UnevenTraffic, *, rows: int, units: int, seed: int) -> dict[str, Any]:
    parts = [p.some(rows, seed=seed) for p in traffic.even]
    learnt = traffic.router_rows(parts)
    gate: nn.Module
    gate = mlp_gate(traffic, hidden=units, seed=seed) if units else linear_gate(traffic)
    count = len(parts)
    train_gate(gate, traffic, learnt, start=torch.full((count,), 1 / count), moves=True, seed=seed)
    tests = traffic.router_rows(traffic.by_domain(traffic.problem.test))
    regrets = {}
    for name, part_rows in (("train", learnt), ("test", tests)):
        own = torch.stack([-log_p[:, k].mean() for k, (_, log_p) in enumerate(part_rows)])
        with torch.no_grad():
            regrets[name] = float((mixture_losses(gate, part_rows) - own).max())
    return {"rows": rows, "units": units, **regrets}
