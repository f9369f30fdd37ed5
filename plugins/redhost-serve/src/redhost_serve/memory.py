"""Freed memory goes back to the system: glibc keeps what a change of generations freed.

Measured: docs/lab-notes.md, "A server's memory".
"""

from __future__ import annotations

import ctypes

__all__ = ["give_back"]


def give_back() -> None:
    """Return free pages to the system, where the C library can."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
