"""One writer at a time, across processes; the second one waits, then says who holds the lock."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from . import atomic
from .errors import LockHeldError

if TYPE_CHECKING:
    from filelock import BaseFileLock

__all__ = ["TIMEOUT", "Writer", "WriterLock"]

TIMEOUT = 10.0
"""Seconds to wait for another writer unless told otherwise."""


@dataclass(frozen=True)
class Writer:
    """Proof, for as long as its ``with`` block lasts, that no other process writes to a home."""

    home: Path


class WriterLock:
    """The guard of one home; entering it again in the same thread is allowed.

    Args:
        home: The folder of a project's state.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self._lock: BaseFileLock | None = None
        self._making = threading.Lock()

    @property
    def is_held(self) -> bool:
        """Tell whether this thread is inside `hold`."""
        return self._lock is not None and self._lock.is_locked

    @contextmanager
    def hold(self, *, timeout: float = TIMEOUT) -> Iterator[Writer]:
        """Hold the lock while the body runs.

        Args:
            timeout: Seconds to wait for another writer.

        Raises:
            LockHeldError: If another process still holds it then.
            StoreError: If the home cannot be written.
        """
        from filelock import Timeout

        with atomic.reporting(self.home):
            atomic.make_folder(self.home)
            lock = self._file_lock()
            try:
                lock.acquire(timeout=timeout)
            except Timeout as e:
                raise self._held() from e
        try:
            with suppress(OSError):  # only a courtesy to whoever has to wait
                atomic.write_file(self.home / "writer.pid", f"{os.getpid()}\n".encode())
            yield Writer(self.home)
        finally:
            lock.release()

    def _file_lock(self) -> BaseFileLock:
        """Return the one lock that all threads share: two would let go of each other's file."""
        from filelock import FileLock

        with self._making:
            self._lock = self._lock or FileLock(self.home / "writer.lock")
            return self._lock

    def _held(self) -> LockHeldError:
        try:
            holder = f"process {int((self.home / 'writer.pid').read_text('utf-8'))}"
        except (OSError, ValueError):
            holder = "another process"
        hint = "Wait for it to end, then try again."
        return LockHeldError(f"cannot write to {self.home}", found=f"{holder} writing", hint=hint)
