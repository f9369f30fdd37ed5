"""Locks between processes: who writes to a home, and who reads from it.

Only one writer at a time: a second one waits, and then reports the holder of the lock. A process
that serves a generation holds a lease on it; gc does not remove leased generations. Both end with
their process, because file locks belong to the operating system.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from .. import atomic
from ..errors import LockHeldError, StoreError, UnknownNameError

if TYPE_CHECKING:
    from filelock import BaseFileLock  # imported where it is used, since importing is slow

TIMEOUT = 10.0
"""Seconds to wait for another writer, by default, and for the gate, which is closed briefly."""


class Writer(Struct, frozen=True):
    """Proof, for as long as its ``with`` block lasts, that no other process writes to a home."""

    home: Path


class _Holder(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    schema: Literal["redhost.writer/1"] = "redhost.writer/1"
    pid: int


class WriterLock:
    """The writer's lock of one home; entering it again in the same thread is allowed.

    Args:
        home: The folder of a project's state.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self._lock: BaseFileLock | None = None
        self._creating = threading.Lock()

    @property
    def is_held(self) -> bool:
        """Return whether this thread is inside `hold`."""
        return self._lock is not None and self._lock.is_locked

    @contextmanager
    def hold(self, *, timeout: float = TIMEOUT) -> Iterator[Writer]:
        """Hold the lock while the body runs.

        Args:
            timeout: Seconds to wait for another writer.

        Raises:
            LockHeldError: If another process still holds it after that.
            StoreError: If the home cannot be written.
        """
        from filelock import FileLock

        with self._creating:  # one lock for all threads: two would release each other's
            lock = self._lock = self._lock or FileLock(self.home / "writer.lock")
        problem = f"cannot write to {self.home}"
        with _held(lock, self.home, timeout=timeout, problem=problem, holder=self._holder):
            with suppress(OSError):  # the holder's name only informs waiting processes
                atomic.write_file(
                    self.home / "writer.pid", atomic.with_digest(_Holder(pid=os.getpid()))
                )
            yield Writer(self.home)

    def _holder(self) -> str:
        with suppress(StoreError):
            holder = atomic.read_struct(self.home / "writer.pid", _Holder, hint="")
            return f"process {holder.pid} writing" if holder else "another process writing"
        return "another process writing"


class Lease(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A generation held by a live process.

    Attributes:
        schema: The version of this schema.
        generation: Its number.
        pid: The process that holds it.
        started: When the lease began, in ISO 8601.
    """

    schema: Literal["redhost.lease/1"] = "redhost.lease/1"
    generation: int
    pid: int
    started: str


class Leases:
    """The leases of one home.

    Args:
        home: The folder of a project's state.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self.folder = home / "leases"

    @contextmanager
    def hold(self, number: int) -> Iterator[Lease]:
        """Keep a generation on disk while the body runs.

        Args:
            number: The generation.

        Raises:
            UnknownNameError: If there is no such generation (any more).
            StoreError: If the lease cannot be written.
        """
        name = f"{os.getpid()}-{os.urandom(4).hex()}"
        started = datetime.now(UTC).isoformat(timespec="seconds")
        lease = Lease(generation=number, pid=os.getpid(), started=started)
        lock = _lock(self.folder / f"{name}.lock")
        try:
            with self.gate():
                atomic.remove_temporaries(self.folder)
                generations = self.home / "generations"
                if not (generations / str(number)).is_dir():
                    numbers = [path.name for path in generations.glob("[0-9]*")]
                    raise UnknownNameError("generation", str(number), numbers)
                with atomic.reporting(self.folder):
                    lock.acquire(timeout=0)
                atomic.write_struct(self.folder / f"{name}.json", lease)
            yield lease
        finally:
            lock.release()
            with suppress(OSError):  # the lock is free: the next sweep removes the files
                self._remove(name)

    @contextmanager
    def gate(self) -> Iterator[None]:
        """Keep leases from being taken while the body runs.

        Raises:
            LockHeldError: If another process keeps the gate closed.
            StoreError: If the home cannot be written.
        """
        with suppress(OSError):
            atomic.make_folder(self.folder)
        if not self.folder.is_dir():  # on a full disk no lease exists, and none can be taken
            yield
            return
        problem, lock = f"cannot use {self.folder}", _lock(self.folder / "gate")
        with _held(lock, self.folder, timeout=TIMEOUT, problem=problem, holder=lambda: "it in use"):
            yield

    def live(self) -> tuple[Lease, ...]:
        """Return the leases of live processes, oldest first; nothing is written.

        Raises:
            StoreError: If a live process's lease is invalid, so that its generation is unknown.
        """
        leases = [
            atomic.read_struct(
                path,
                Lease,
                hint=f"End process {path.name.partition('-')[0]}, which holds it, then try again.",
            )
            for path in sorted(self.folder.glob("*.json"))
            if self._is_live(path.stem)
        ]
        return tuple(sorted(filter(None, leases), key=lambda lease: (lease.started, lease.pid)))

    def sweep(self) -> None:
        """Remove what dead processes left; call it only inside `gate`.

        Raises:
            StoreError: If the home cannot be written.
        """
        atomic.remove_temporaries(self.folder)
        with atomic.reporting(self.folder):
            for name in sorted({path.stem for path in self.folder.glob("*-*.*")}):
                if not self._is_live(name):
                    self._remove(name)

    def _is_live(self, name: str) -> bool:
        """Return whether a holder is alive; True if that cannot be determined."""
        from filelock import Timeout

        path = self.folder / f"{name}.lock"
        if not path.exists():
            return False
        lock = _lock(path)
        try:
            lock.acquire(timeout=0)
        except (Timeout, OSError):
            return True
        lock.release()
        return False

    def _remove(self, name: str) -> None:
        atomic.remove_file(self.folder / f"{name}.json")
        atomic.remove_file(self.folder / f"{name}.lock")


@contextmanager
def _held(
    lock: BaseFileLock, folder: Path, *, timeout: float, problem: str, holder: Callable[[], str]
) -> Iterator[None]:
    """Hold the lock of a folder, created if missing; if it is taken, report its holder."""
    from filelock import Timeout

    with atomic.reporting(folder):
        atomic.make_folder(folder)
        try:
            lock.acquire(timeout=timeout)
        except Timeout as e:
            raise LockHeldError(
                problem, found=holder(), hint="Wait for it to end, then try again."
            ) from e
    try:
        yield
    finally:
        lock.release()


def _lock(path: Path) -> BaseFileLock:
    from filelock import FileLock

    return FileLock(path, thread_local=False)  # another thread may release it
