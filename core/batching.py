"""Rows in pieces, so that memory is bounded whatever the number of rows, experts and labels."""

from __future__ import annotations

from collections.abc import Iterator

NUMBERS = 2**26
"""About so many numbers, 256 MiB of them, at once."""


def batched_slices(rows: int, *, cost: int, numbers: int = NUMBERS) -> Iterator[slice]:
    """Yield slices that cover the rows in order; one of no rows where there are none.

    Args:
        rows: How many rows.
        cost: Numbers that one row needs.
        numbers: How many may be needed at once.
    """
    step = max(1, numbers // max(1, cost))
    for start in range(0, max(rows, 1), step):
        yield slice(start, min(start + step, rows))
