"""Nested ranks: one expert whose first r units are an expert of rank r.

    Δ_r(z) = V[:, :r] σ(U[:r] z)

Every step trains one rank r drawn from the list, so that units with larger indices, which are
truncated first, matter least (nested dropout: Rippel, Gelbart and Adams 2014, arXiv 1402.0915).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

import redhost
from red_lab.red.base import FrozenBase
from red_lab.red.experts import NAMES, Budget, Family, normed
from red_lab.red.queries import LABELS, Query
from red_lab.training import descend_over
from redhost.core.bus.experts import LowRank

__all__ = ["cut_to", "train_nested"]


def train_nested(
    base: FrozenBase, train: Sequence[Query], *, ranks: Sequence[int], budget: Budget, seed: int
) -> Family:
    """Train five residual experts that can be cut to any of some ranks."""
    experts = tuple(
        _train(base, [q for q in train if q.domain == name], ranks, budget, seed) for name in NAMES
    )
    return _family(experts)


def cut_to(family: Family, rank: int) -> Family:
    """Return the experts with only their first units, without further training."""
    return _family(
        [
            LowRank(
                U=e.U.detach()[:rank].clone(),
                V=e.V.detach()[:, :rank].clone(),
                activation=e.activation,
                space="hidden",
            )
            for e in family.experts
            if isinstance(e, LowRank)
        ]
    )


def _family(experts: Sequence[redhost.Expert]) -> Family:
    parameters = sum(p.numel() for e in experts for p in e.parameters())
    frozen = tuple(e.requires_grad_(False) for e in experts)
    return Family(form="residual", experts=frozen, parameters=parameters, seconds=0.0)


def _train(
    base: FrozenBase, train: Sequence[Query], ranks: Sequence[int], budget: Budget, seed: int
) -> LowRank:
    """Take as many steps as an expert of one rank, with the same optimiser and schedule."""
    generator = torch.Generator().manual_seed(seed)
    width = base.h.shape[1]
    U = torch.randn(max(ranks), width, generator=generator) / width**0.5
    expert = LowRank(U=U, V=torch.zeros(width, max(ranks)), activation="gelu", space="hidden")
    h = base.h[base.rows(train)]
    z, target = normed(h), torch.tensor([LABELS.index(q.label) for q in train])

    def loss(rows: Tensor) -> Tensor:
        rank = ranks[int(torch.randint(len(ranks), (), generator=generator))]
        logits = (h[rows] + _first(expert, rank, z[rows])) @ base.classifier.T
        return torch.nn.functional.cross_entropy(logits, target[rows])

    descend_over(expert, len(h), loss, recipe=budget, generator=generator)
    return expert


def _first(expert: LowRank, rank: int, z: Tensor) -> Tensor:
    """Return Δ_r(z)."""
    units = torch.nn.functional.gelu(z @ expert.U[:rank].T)
    return units @ expert.V[:, :rank].T
