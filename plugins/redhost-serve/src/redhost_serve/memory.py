"""Return freed memory to the system: glibc keeps the memory that a swap of generations frees.

Measured in docs/lab-notes.md, "A server's memory".
"""

from __future__ import annotations

import ctypes

__all__ = ["give_back"]


def give_back() -> None:
    """Return free pages to the system, if the C library supports it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
