"""One `sync` at a time, together with the installers that it started.

A killed process leaves its pip running. The lock's file is inherited, so that the lock ends with
the last process that writes to the environment, and the next `sync` waits for it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from redhost.registry.atomic import make_folder, reporting
from redhost.registry.errors import LockHeldError

PATIENCE = 120.0
"""Seconds to wait for another `sync`, or for the installer of a killed one."""


@contextmanager
def alone(home: Path, *, patience: float = PATIENCE) -> Iterator[None]:
    """Hold the lock of `sync` in a home while the body runs.

    Raises:
        LockHeldError: If another one still holds it after that.
    """
    if sys.platform == "win32":  # no such locks: two at a time are the user's to avoid
        yield
        return
    path = home / "sync.lock"
    with reporting(path):
        make_folder(home)
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        os.set_inheritable(file, True)
        _wait(file, time.monotonic() + patience, path)
        yield
    finally:
        os.close(file)


def _wait(file: int, until: float, path: Path) -> None:
    import fcntl

    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as e:
            if time.monotonic() > until:
                raise LockHeldError(
                    f"another 'redhost sync', or the installer of a killed one, holds {path}",
                    hint="Wait for it to end, then try again.",
                ) from e
            time.sleep(0.05)
        else:
            return
