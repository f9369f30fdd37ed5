"""Where the suite runs: in memory if there is enough, and on copies of the code."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from redhost.registry.environment import trust
from redhost.registry.package.discover import canonical, plugin_entry_points

__all__ = ["trusting_copies", "use_memory"]

MEMORY, ENOUGH = Path("/dev/shm"), 4 * 2**30
"""Linux's folder in memory, and the free bytes that the tests' folders need there."""


def use_memory() -> None:
    """Put the tests' folders into memory: tests of homes and stores mostly wait for the disk."""
    with suppress(OSError):
        flags = os.statvfs(MEMORY).f_flag
        if not flags & (os.ST_NOEXEC | os.ST_RDONLY) and shutil.disk_usage(MEMORY).free >= ENOUGH:
            os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


@contextmanager
def trusting_copies(released: Path) -> Iterator[None]:
    """Trust this project's plugins where copies of them are tested, as `make mutate` does.

    Args:
        released: Where to write the digests, as those that redhost was released with.
    """
    names = {canonical(p.dist) for p in plugin_entry_points("redhost.plugins")}
    copies = [n for n in names if n.startswith("redhost-") and not trust.is_trusted(n)]
    with pytest.MonkeyPatch.context() as patch:
        if copies:
            released.write_text(json.dumps({name: trust.digest_of(name) for name in copies}))
            patch.setattr(trust, "RELEASED", released)
        yield
