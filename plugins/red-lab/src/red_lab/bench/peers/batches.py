"""Rows of sums as batches of one token length, for models that pool the last token."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from red_lab.arithmetic import ArithmeticRow
from red_lab.base import LABELS
from red_lab.tiny_model import make_tokenizer

__all__ = ["PeerBatch", "accuracy", "batches", "passes"]


@dataclass(frozen=True, kw_only=True, eq=False)
class PeerBatch:
    """Token ids ``(B, T)``, label indices of the answers ``(B,)``, and the domains."""

    ids: Tensor
    answers: Tensor
    domains: tuple[str, ...]


def batches(rows: Sequence[ArithmeticRow], size: int) -> list[PeerBatch]:
    """Split rows, in their order, into batches of one token length each."""
    tokenizer: Any = make_tokenizer()
    by_length: dict[int, list[tuple[list[int], ArithmeticRow]]] = {}
    for row in rows:
        ids = list(tokenizer(row.text)["input_ids"])
        by_length.setdefault(len(ids), []).append((ids, row))
    return [
        PeerBatch(
            ids=torch.tensor([ids for ids, _ in part]),
            answers=torch.tensor([LABELS.index(row.label) for _, row in part]),
            domains=tuple(row.domain for _, row in part),
        )
        for same in by_length.values()
        for part in (same[n : n + size] for n in range(0, len(same), size))
    ]


def passes(rows: Sequence[ArithmeticRow], size: int, *, seed: int) -> Iterator[PeerBatch]:
    """Yield batches without end, reshuffled in every pass over the rows."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        order = torch.randperm(len(rows), generator=generator).tolist()
        made = batches([rows[i] for i in order], size)
        for n in torch.randperm(len(made), generator=generator).tolist():
            yield made[n]


def accuracy(answer: Callable[[PeerBatch], Tensor], rows: Sequence[ArithmeticRow]) -> float:
    """Return the fraction of rows whose largest logit is the answer's."""
    with torch.inference_mode():
        right = [answer(b).argmax(-1).eq(b.answers).sum() for b in batches(rows, 64)]
    return float(sum(right)) / len(rows)
