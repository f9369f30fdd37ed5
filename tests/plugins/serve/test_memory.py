"""What a change freed goes back to the system."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
from redhost_serve.memory import give_back
from redhost_serve.service import Service

MIB = 2**20

needs_glibc = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="needs glibc"
)


def resident() -> int:
    status = Path("/proc/self/status").read_text("ascii")
    return next(int(x.split()[1]) * 1024 for x in status.splitlines() if x.startswith("VmRSS"))


def hold_free_pages() -> tuple[bytearray, int]:
    """Leave free pages in the heap; return what keeps glibc from giving them back, and the size."""
    blocks = [bytearray(60_000) for _ in range(2000)]
    last = blocks.pop()  # at the end of the heap, which glibc would shorten by itself
    blocks.clear()
    return last, resident()


@needs_glibc
def test_pages_between_what_is_still_used_go_back() -> None:
    last, before = hold_free_pages()
    give_back()
    assert resident() < before - 64 * MIB
    assert len(last) == 60_000


@needs_glibc
def test_a_server_begins_without_what_loading_freed(open_live, home) -> None:
    live = open_live(home)
    last, before = hold_free_pages()
    service = Service(live)
    assert resident() < before - 64 * MIB
    assert len(last) == 60_000
    service.close()
