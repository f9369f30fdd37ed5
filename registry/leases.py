"""Which generations live processes hold: `redhost gc` leaves them alone, whatever their age.

Each holder has two files under ``HOME/leases/``: one that says what is held, and one that the
operating system locks for as long as the holder lives. A dead holder's lock is free, so its lease
counts for nothing, however it died.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec import Struct

from . import atomic
from .errors import LockHeldError, StoreError, UnknownNameError
from .manifest import dumps

if TYPE_CHECKING:
    from filelock import BaseFileLock

__all__ = ["Lease", "Leases"]

TIMEOUT = 10.0
"""Seconds to wait for the gate, which is closed for moments only."""


class Lease(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A generation held by a live process.

    Attributes:
        schema: The version of this schema.
        generation: Its number.
        pid: The process that holds it.
        started: Since when, in ISO 8601.
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
        name = f"{os.getpid()}-{secrets.token_hex(4)}"
        started = datetime.now(UTC).isoformat(timespec="seconds")
        lease = Lease(generation=number, pid=os.getpid(), started=started)
        lock = _lock(self.folder / f"{name}.lock")
        try:
            with self.gate():
                atomic.sweep(self.folder)
                if not (self.home / "generations" / str(number)).is_dir():
                    raise UnknownNameError("generation", str(number), self._numbers())
                with atomic.reporting(self.folder):
                    lock.acquire(timeout=0)
                atomic.write_atomic(self.folder / f"{name}.json", dumps(lease))
            yield lease
        finally:
            lock.release()
            with suppress(OSError):  # the lock is free: whoever looks next removes what is left
                self._remove(name)

    @contextmanager
    def gate(self) -> Iterator[None]:
        """Keep leases from being taken while the body runs.

        Raises:
            LockHeldError: If another process keeps the gate closed.
            StoreError: If the home cannot be written.
        """
        from filelock import Timeout

        with atomic.reporting(self.folder):
            atomic.make_folder(self.folder)
            gate = _lock(self.folder / "gate")
            try:
                gate.acquire(timeout=TIMEOUT)
            except Timeout as e:
                hint = "Wait for it to end, then try again."
                raise LockHeldError(
                    f"cannot use {self.folder}", found="it in use", hint=hint
                ) from e
        try:
            yield
        finally:
            gate.release()

    def live(self) -> tuple[Lease, ...]:
        """Return the leases of live processes, oldest first; nothing is written.

        Raises:
            StoreError: If a live process's lease cannot be understood: then it is unknown what
                it holds.
        """
        names = [path.stem for path in sorted(self.folder.glob("*.json"))]
        found = [self._read(name) for name in names if self._is_live(name)]
        return tuple(sorted(filter(None, found), key=lambda one: (one.started, one.pid)))

    def sweep(self) -> None:
        """Remove what dead processes left; call it inside `gate` only.

        Raises:
            StoreError: If the home cannot be written.
        """
        atomic.sweep(self.folder)
        with atomic.reporting(self.folder):
            for name in sorted({path.stem for path in self.folder.glob("*-*.*")}):
                if not self._is_live(name):
                    self._remove(name)

    def _is_live(self, name: str) -> bool:
        """Tell whether a holder lives; where that cannot be tried, say yes."""
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

    def _read(self, name: str) -> Lease | None:
        path = self.folder / f"{name}.json"
        if (data := atomic.read(path)) is None:
            return None  # given back since
        try:
            return msgspec.json.decode(data, type=Lease)
        except (msgspec.DecodeError, UnicodeDecodeError) as e:
            hint = f"End process {name.partition('-')[0]}, which holds it, then try again."
            raise StoreError(f"cannot read {path}", found=str(e), hint=hint) from e

    def _remove(self, name: str) -> None:
        atomic.remove_file(self.folder / f"{name}.json")
        atomic.remove_file(self.folder / f"{name}.lock")

    def _numbers(self) -> list[str]:
        return [path.name for path in (self.home / "generations").glob("[0-9]*")]


def _lock(path: Path) -> BaseFileLock:
    from filelock import FileLock

    return FileLock(path, thread_local=False)  # whoever ends it need not be who began
