"""A server that is not ready for a while before it stops, so that load balancers turn elsewhere."""

from __future__ import annotations

import logging
import signal
import socket
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import uvicorn

__all__ = ["ENDING", "GracefulServer"]

log = logging.getLogger("redhost")

ENDING = 30
"""Seconds in which requests in progress have to end."""


class GracefulServer(uvicorn.Server):
    """A server that reports that it is not ready before it stops accepting requests.

    Args:
        app: The application.
        grace: Seconds between SIGTERM and the end of new requests: time for a load balancer to
            switch to other servers. Ctrl-C, or a second signal, does not wait.
        started: Called when the server answers.
        leaving: Called when it is not ready any more.
        options: Further options of uvicorn's configuration.
    """

    def __init__(
        self,
        app: Any,
        *,
        grace: float,
        started: Callable[[], None],
        leaving: Callable[[], None],
        **options: Any,
    ) -> None:
        # Ignore a proxy's headers on a request's origin: only this machine may make changes.
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=ENDING,
            ws="none",
            **options,
        )
        super().__init__(config)
        self.grace, self.begun, self.leaving = grace, started, leaving
        self.leave_at: float | None = None
        self.answered = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then call `started`, unless a signal came meanwhile."""
        await super().startup(sockets=sockets)
        if not self.should_exit:
            self.begun()
            self.answered = True

    def run_on(self, listener: socket.socket) -> None:
        """Answer requests on a socket until a signal ends the server.

        Raises:
            KeyboardInterrupt: If Ctrl-C came before it answered.
        """
        try:
            self.run(sockets=[listener])
        except KeyboardInterrupt:  # uvicorn raises Ctrl-C again
            if not self.answered:
                raise

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle a signal: first stop being ready, then, after the grace period, stop."""
        self.leaving()
        if self.leave_at is None and sig == signal.SIGTERM:
            self.leave_at = time.monotonic() + self.grace
            log.info("draining for %g seconds", self.grace)
        else:
            super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        """Return whether it is time to stop."""
        if self.leave_at is not None and time.monotonic() >= self.leave_at:
            self.should_exit = True
        return await super().on_tick(counter)
