"""Marks of a card's rows: whatever learnt from a row answers it as if it had not.

    [ words of the row | number of the expert | number of the row ]

Experts of words and their router are solved in closed form, so their answer to a row that they
learnt from is known with the row left out (Allen's PRESS, 1974). Hosts judge compositions on such
rows; none has to be withheld from learning. Only rows of cards have a mark. A text that is sent to
the host has zeros there, even if it is one of those rows.
"""

from __future__ import annotations

import hashlib
from collections import Counter

import torch
from torch import Tensor

__all__ = ["MARK", "keys_of", "marked"]

MARK = 2
"""The numbers of a mark."""

BITS = 24
"""Bits of each: a float32 has all integers up to 2^24."""


def marked(words: Tensor, *, expert: str) -> Tensor:
    """Return the words ``(N, W)`` of all rows of an expert's card with their marks, ``(N, W + 2)``.

    Rows with equal words have none: leaving one out would leave the other in.
    """
    rows = [_number(row.numpy().tobytes()) for row in words.float()]
    several = {number for number, rows_of in Counter(rows).items() if rows_of > 1}
    owner = _number(expert.encode())
    marks = [(0, 0) if number in several else (owner, number) for number in rows]
    return torch.cat([words.float(), torch.tensor(marks).float().reshape(-1, MARK)], dim=1)


def keys_of(words: Tensor) -> Tensor:
    """Return an integer for the mark of each row ``(N, W + 2)``, ``(N,)``; 0 for none."""
    owner, row = words[:, -MARK:].long().unbind(1)
    return (owner << BITS) + row


def _number(data: bytes) -> int:
    """Return a number from 1 to 2^24 − 1."""
    digest = int.from_bytes(hashlib.sha256(data).digest()[:8], "big")
    return 1 + digest % ((1 << BITS) - 1)
