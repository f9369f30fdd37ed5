"""What experts say to a batch: Δ of those that have a say, for the rows they have it on.

A router that gives a say to k columns asks for B · k of the B · E answers. They are grouped by
column: an expert that is asked at all gets its rows in one product, and one that is not asked
costs nothing, not even memory where its weights are loaded lazily.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Said", "active", "together", "weigh"]


@dataclass(frozen=True, eq=False)
class Said:
    """What one expert says.

    Attributes:
        column: Its column.
        rows: The rows it was asked about, ``(n,)``; None for all.
        delta: Δ of these rows, ``(n, out)``.
    """

    column: int
    rows: Tensor | None
    delta: Tensor


def active(weights: Tensor) -> Iterator[tuple[int, Tensor | None]]:
    """Yield every column that has a weight on some row, with these rows ``(n,)``.

    Args:
        weights: α, or a mask, ``(B, K)``; exactly zero is no say.

    Yields:
        Columns in their order; None for the rows of a batch of one.
    """
    if len(weights) == 1:
        for column in weights[0].nonzero().flatten().tolist():
            yield column, None
        return
    columns, rows = weights.T.nonzero(as_tuple=True)
    names, counts = torch.unique_consecutive(columns, return_counts=True)
    yield from zip(names.tolist(), torch.split(rows, counts.tolist()), strict=True)


def together(said: Sequence[Said], batch: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return what was said as one table: rows ``(P,)``, columns ``(P,)`` and Δ ``(P, out)``.

    One operation on the table is one, not one for each expert; Δ must be equally wide.

    Args:
        said: Not empty.
        batch: B, how many rows `None` stands for.
    """
    every = torch.arange(batch, device=said[0].delta.device)
    rows = [every if s.rows is None else s.rows for s in said]
    columns = [torch.full_like(r, s.column) for r, s in zip(rows, said, strict=True)]
    return torch.cat(rows), torch.cat(columns), torch.cat([s.delta for s in said])


def weigh(said: Iterable[Said], alpha: Tensor, out: Tensor) -> Tensor:
    """Return out + Σ_i α_i Δ_i, ``(B, out)``, over what was said, in the order given."""
    some = list(said)
    if not some:
        return out
    rows, columns, delta = together(some, len(out))
    return out.index_add(0, rows, alpha[rows, columns, None] * delta)
