"""Batches of bounded memory, for any number of rows, experts and labels."""

from __future__ import annotations

from collections.abc import Iterator

NUMBERS = 2**26
"""Approximate limit on the numbers held at once: 256 MiB of them."""


def batched_slices(rows: int, *, cost: int, numbers: int = NUMBERS) -> Iterator[slice]:
    """Yield slices that cover the rows in order; one empty slice if there are none.

    Args:
        rows: The number of rows.
        cost: The numbers that one row needs.
        numbers: The limit on the numbers needed at once.
    """
    step = max(1, numbers // max(1, cost))
    for start in range(0, max(rows, 1), step):
        yield slice(start, min(start + step, rows))
