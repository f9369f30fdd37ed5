"""The server process: uvicorn around the application, with a graceful shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Literal

import uvicorn
from fastapi import FastAPI

import redhost
from redhost_serve.app import create_app
from redhost_serve.limits import HEAD_BYTES
from redhost_serve.listener import bind
from redhost_serve.service import Options, Service

__all__ = ["Server", "running"]

log = logging.getLogger("redhost.serve")

ENDING = 30
"""Seconds in which requests in progress have to end."""


class Server(uvicorn.Server):
    """A server that reports that it is not ready before it stops accepting requests.

    Args:
        app: The application.
        service: The service.
        grace: Seconds between SIGTERM and the end of new requests: time for a load balancer to
            switch to other servers. Ctrl-C, or a second signal, does not wait.
        started: Called when the server answers.
    """

    def __init__(
        self,
        app: FastAPI,
        service: Service,
        *,
        grace: float,
        started: Callable[[], None] = lambda: None,
    ) -> None:
        # Ignore a proxy's headers on a request's origin: only this machine may make changes.
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=5,
            timeout_graceful_shutdown=ENDING,
            http=_protocol(),
            h11_max_incomplete_event_size=HEAD_BYTES,
            ws="none",
        )
        super().__init__(config)
        self.service, self.grace, self.begun = service, grace, started
        self.leave_at: float | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then call `started`."""
        await super().startup(sockets=sockets)
        self.begun()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle a signal: first stop being ready, then, after the grace period, stop."""
        if self.leave_at is None and sig == signal.SIGTERM:
            self.drain()
        else:
            self._stop_being_ready()
            super().handle_exit(sig, frame)

    def drain(self) -> None:
        """Stop being ready; requests are accepted until the grace period ends."""
        self._stop_being_ready()
        self.leave_at = time.monotonic() + self.grace
        log.info("draining for %g seconds", self.grace)

    def _stop_being_ready(self) -> None:
        for service in self.service.every:
            service.draining = True

    async def on_tick(self, counter: int) -> bool:
        """Return whether it is time to stop."""
        if self.leave_at is not None and time.monotonic() >= self.leave_at:
            self.should_exit = True
        return await super().on_tick(counter)


def _protocol() -> type[asyncio.Protocol] | Literal["h11"]:
    """Return the parser of HTTP; h11, where there is no other, has a bound of its own."""
    try:
        from redhost_serve.protocol import BoundedProtocol
    except ImportError:
        return "h11"
    return BoundedProtocol


@contextlib.contextmanager
def running(
    live: redhost.Live, *, options: Options | None = None, token: str | None = None
) -> Iterator[tuple[str, Service]]:
    """Serve a live host on a free port of this machine while the block runs.

    Args:
        live: The live host that answers.
        options: The service's options.
        token: The secret that authorises changes.

    Yields:
        The server's address, and the service.
    """
    service, ready = Service(live, options=options or Options()), threading.Event()
    listener = bind("127.0.0.1", 0)
    server = Server(create_app(service, token=token), service, grace=0, started=ready.set)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        if not ready.wait(60):
            raise redhost.MissingError("the server did not start within a minute")
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", service
    finally:
        service.draining = True  # ends the open streams
        server.should_exit = True
        thread.join()
        listener.close()
