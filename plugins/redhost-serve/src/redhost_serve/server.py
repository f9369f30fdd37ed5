"""The server process: uvicorn around the application, with a graceful shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Literal

from fastapi import FastAPI

import redhost
from redhost_serve.app import create_app
from redhost_serve.graceful import GracefulServer
from redhost_serve.limits import HEAD_BYTES
from redhost_serve.listener import bind
from redhost_serve.service import Options, Service

__all__ = ["Server", "running"]


class Server(GracefulServer):
    """The server of a service.

    Args:
        app: The application.
        service: The service.
        grace: Seconds between SIGTERM and the end of new requests.
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
        super().__init__(
            app,
            grace=grace,
            started=started,
            leaving=self._stop_being_ready,
            timeout_keep_alive=5,
            http=_protocol(),
            h11_max_incomplete_event_size=HEAD_BYTES,
        )
        self.service = service

    def _stop_being_ready(self) -> None:
        for service in self.service.every:
            service.draining = True


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
