"""Replicas as processes: they start, are killed, and start again, each in its own home."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from redhost_serve.client import Client
from redhost_serve.process import ServerProcess, serving

__all__ = ["Replica", "fleet_of", "is_ready"]


class Replica:
    """One replica, over all its processes.

    Args:
        folder: The folder of its home and logs.
        store: The store that it follows.
    """

    def __init__(self, folder: Path, store: str) -> None:
        self.folder, self.store = folder, store
        self.url: str | None = None
        self.downs: list[tuple[float, float]] = []
        self._stack = contextlib.ExitStack()
        self._starts = 0

    def start(self) -> None:
        """Start the process, and wait until it answers."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._starts += 1
        self.process: ServerProcess = self._stack.enter_context(
            serving(
                self.folder / "home",
                "--follow",
                self.store,
                log=self.folder / f"{self._starts}.log",
            )
        )
        while True:
            if is_ready(self.process.url):
                break
            time.sleep(0.05)
        self.url = self.process.url

    def kill(self) -> None:
        """Kill the process at once, and restart it from another thread."""
        self.url, began = None, time.monotonic()
        os.kill(self.process.pid, signal.SIGKILL)
        self._stack.close()

        def again() -> None:
            self.start()
            self.downs.append((began, time.monotonic()))

        threading.Thread(target=again, daemon=True).start()

    def was_down(self, sent: float, back: float) -> bool:
        """Return whether it was down at any time between `sent` and `back`."""
        now = [(0.0, 0.0)] if self.url is not None else [(sent, back)]
        return any(begin <= back and sent <= end for begin, end in [*self.downs, *now])

    def stop(self) -> None:
        """End the process."""
        while self.url is None:  # it is starting
            time.sleep(0.05)
        self._stack.close()


def is_ready(url: str) -> bool:
    """Return whether a server accepts requests."""
    with contextlib.suppress(OSError, http.client.HTTPException), Client(url) as client:
        return client.get("/v2/health/ready").status == 200  # noqa: PLR2004
    return False


@contextlib.contextmanager
def fleet_of(count: int, folder: Path, store: str) -> Iterator[list[Replica]]:
    """Run replicas during the block; they start one after the other, as there are two cores."""
    replicas = [Replica(folder / f"replica{n}", store) for n in range(count)]
    try:
        for replica in replicas:
            replica.start()
        yield replicas
    finally:
        for replica in replicas:
            replica.stop()
