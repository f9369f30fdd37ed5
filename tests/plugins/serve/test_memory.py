"""What a change freed goes back to the system."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
from redhost_serve.memory import give_back

MIB = 2**20


def resident() -> int:
    status = Path("/proc/self/status").read_text("ascii")
    return next(int(x.split()[1]) * 1024 for x in status.splitlines() if x.startswith("VmRSS"))


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="needs glibc")
def test_pages_between_what_is_still_used_go_back() -> None:
    blocks = [bytearray(60_000) for _ in range(2000)]
    last = blocks.pop()  # at the end of the heap, which glibc would shorten by itself
    blocks.clear()
    before = resident()
    give_back()
    assert resident() < before - 64 * MIB
    assert len(last) == 60_000
