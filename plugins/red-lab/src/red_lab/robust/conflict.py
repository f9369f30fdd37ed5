"""Measure gradient conflict: cosines between the gradients of different domains' losses.

For every pair of domains k < l, the cosine between ∇ℓ_k and ∇ℓ_l with respect to the same
parameters: for the monolith, and for all experts together under the frozen robust router (ℓ_k of
the mixture), before and after training.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from red_lab.matched.apart import Alone, alone
from red_lab.matched.data import DataPart
from red_lab.robust.traffic import UnevenTraffic, answer_log_p, domain_losses, untrained

__all__ = ["conflicts", "cosines"]

ROWS = 256


def conflicts(
    traffic: UnevenTraffic, gate: nn.Module, monolith: Alone, *, seed: int
) -> dict[str, dict[str, Any]]:
    """Return the cosines of both models, before and after training."""
    problem = traffic.problem
    parts = [p.some(ROWS, seed=seed) for p in traffic.by_domain(problem.train)]
    count = len(traffic.experts)
    fresh = untrained(problem, rank=problem.rank * count, seed=seed)
    modules = alone(problem, copy.deepcopy(traffic.experts))
    start = copy.deepcopy(modules)
    for k, module in enumerate(start):
        _reset(module, seed=1000 * seed + k)
    return {
        "monolith": {
            "start": _cosine_summary(fresh, lambda: domain_losses(fresh, parts)),
            "end": _cosine_summary(monolith, lambda: domain_losses(monolith, parts)),
        },
        "modular": {
            "start": _cosine_summary(nn.ModuleList(start), lambda: _mixed(start, gate, parts)),
            "end": _cosine_summary(nn.ModuleList(modules), lambda: _mixed(modules, gate, parts)),
        },
    }


def cosines(module: nn.Module, losses: Callable[[], Tensor]) -> list[float]:
    """Return cos(∇ℓ_k, ∇ℓ_l) of every pair k < l.

    Args:
        module: The module with the parameters.
        losses: → ℓ ``(K,)`` with its graph.
    """
    parameters = [p for p in module.parameters() if p.requires_grad]
    found = losses()
    flat = []
    for loss in found:
        grads = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
        flat.append(
            torch.cat(
                [
                    (torch.zeros_like(p) if g is None else g).flatten()
                    for p, g in zip(parameters, grads, strict=True)
                ]
            )
        )
    unit = torch.nn.functional.normalize(torch.stack(flat).double(), dim=1, eps=1e-30)
    table = unit @ unit.T
    return [float(table[k, j]) for k, j in itertools.combinations(range(len(flat)), 2)]


def _cosine_summary(module: nn.Module, losses: Callable[[], Tensor]) -> dict[str, float]:
    found = cosines(module.requires_grad_(True), losses)
    return {
        "mean": sum(found) / len(found),
        "least": min(found),
        "negative": sum(c < 0 for c in found) / len(found),
    }


def _mixed(modules: Sequence[Alone], gate: nn.Module, parts: Sequence[DataPart]) -> Tensor:
    """Return ℓ_k ``(K,)`` of Σ_j g_j p_j."""
    losses = []
    for part in parts:
        with torch.no_grad():
            log_gate = torch.log_softmax(gate(part.z), dim=-1)
        log_p = torch.stack([answer_log_p(m, part) for m in modules], dim=1)
        losses.append(-torch.logsumexp(log_gate + log_p, dim=-1).mean())
    return torch.stack(losses)


def _reset(module: Alone, *, seed: int) -> None:
    """Reset an expert to its initial state: U random, all else zero."""
    generator = torch.Generator().manual_seed(seed)
    for name, p in module.expert.named_parameters():
        drawn = torch.randn(p.shape, generator=generator) / p.shape[-1] ** 0.5
        p.data = drawn if name == "U" else torch.zeros_like(p)
