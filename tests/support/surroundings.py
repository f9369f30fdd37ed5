"""Where the suite runs: in memory if there is enough, and on mutated copies of the code."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

__all__ = ["trusting_mutants", "use_memory"]

MEMORY, ENOUGH = Path("/dev/shm"), 4 * 2**30
"""Linux's folder in memory, and the free bytes that the tests' folders need there."""


def use_memory() -> None:
    """Put the tests' folders into memory: tests of homes and stores mostly wait for the disk."""
    with suppress(OSError):
        flags = os.statvfs(MEMORY).f_flag
        if not flags & (os.ST_NOEXEC | os.ST_RDONLY) and shutil.disk_usage(MEMORY).free >= ENOUGH:
            os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


@contextmanager
def trusting_mutants() -> Iterator[None]:
    """Trust this project's plugins where `make mutate` tests copies of them with other code."""
    with pytest.MonkeyPatch.context() as patch:
        if "MUTATED" in os.environ:
            trust = "redhost.registry.environment.trust"
            patch.setattr(f"{trust}.source_tree", lambda: Path(__file__).parents[2])
            patch.setattr(
                f"{trust}._project_in",
                lambda tree, dist: tree if dist.startswith("redhost-") else None,
            )
            patch.setattr(f"{trust}.Contents.lies_below", lambda self, folder: True)
        yield
