"""Write a routing card: the author chooses how much of the domain leaves the house."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import safetensors.torch
import torch
from torch import Tensor

from ...registry.errors import CardError
from ..rows import CardRow, write_rows
from ..statistics import Statistics
from ..tasks import Classification, Task

__all__ = ["CardFile", "no_card", "statistics_card", "texts_card", "vectors_card"]

FLOOR = 5
"""Fewest rows of a label in a statistics card: the sum of one row is that row, and sums of a few
can be taken apart by whoever knows the others."""


@dataclass(frozen=True, kw_only=True)
class CardFile:
    """A card's kind, bytes and numbers of rows, ready for the manifest."""

    kind: Literal["none", "statistics", "texts", "vectors"]
    name: str | None = None
    data: bytes | None = None
    fit: int = 0
    gate: int = 0


def no_card() -> CardFile:
    """Return no card: routers that need one cannot use the expert."""
    return CardFile(kind="none")


def texts_card(rows: Sequence[CardRow]) -> CardFile:
    """Return a card of labelled texts, in the clear."""
    return CardFile(
        kind="texts",
        name="card.jsonl",
        data=write_rows(rows),
        fit=sum(r.part == "fit" for r in rows),
        gate=sum(r.part == "gate" for r in rows),
    )


def vectors_card(
    *,
    fit_z: Tensor,
    fit_labels: Sequence[str],
    gate_h: Tensor,
    gate_labels: Sequence[str],
    labels: Sequence[str],
    eps: float,
    statistics: Statistics | None = None,
    task: Task | None = None,
) -> CardFile:
    """Return a card of bus vectors: z, and for gate rows what it takes to get h back.

    Args:
        fit_z: Bus vectors ``(F, D)``.
        fit_labels: Their labels.
        gate_h: Features ``(G, D)`` of the gate rows.
        gate_labels: Their labels.
        labels: The manifest's labels; rows refer to them by index.
        eps: ε of the bus norm.
        statistics: Sums over all the author's rows, which say more than the few rows shown.
        task: Where it is a regression, rows carry their number in place of the index.
    """
    targets = (task or Classification()).targets
    shift = gate_h.mean(-1, keepdim=True)
    scale = (gate_h.var(-1, unbiased=False, keepdim=True) + eps).sqrt()
    tensors = {
        "fit_z": fit_z.contiguous(),
        "fit_label": targets(fit_labels, labels),
        "gate_z": ((gate_h - shift) / scale).contiguous(),
        "gate_label": targets(gate_labels, labels),
        "gate_shift": shift.contiguous(),
        "gate_scale": scale.contiguous(),
    }
    if statistics is not None:
        tensors |= _sums(statistics, labels)
    return CardFile(
        kind="vectors",
        name="card.safetensors",
        data=safetensors.torch.save(tensors),
        fit=len(fit_z),
        gate=len(gate_h),
    )


def statistics_card(z: Tensor, row_labels: Sequence[str], *, labels: Sequence[str]) -> CardFile:
    """Return a card of sums: no row leaves the author.

    Args:
        z: Bus vectors ``(N, D)``.
        row_labels: Their labels.
        labels: The manifest's labels, in order.

    Raises:
        CardError: If a label has fewer rows than the floor.
    """
    counts = Counter(row_labels)
    few = sorted(y for y in labels if counts[y] < FLOOR)
    if few:
        raise CardError(
            "a statistics card would give single rows away",
            expected=f"at least {FLOOR} rows of each label",
            found=f"fewer of {', '.join(few[:5])}",
            hint="Bring more rows of them, or choose --card texts.",
        )
    return CardFile(
        kind="statistics",
        name="card.safetensors",
        data=safetensors.torch.save(_sums(Statistics.of_rows(z, row_labels), labels)),
        fit=min(len(z), 256),
    )


def _sums(found: Statistics, labels: Sequence[str]) -> dict[str, Tensor]:
    """Return the tensors of statistics, label by label in the manifest's order."""
    order = torch.tensor([found.labels.index(y) for y in labels])
    return {
        "counts": found.counts[order].to(torch.int64),
        "sums": found.sums[order].to(torch.float32),
        "scatter": found.scatter.to(torch.float32),
    }
