"""Checks before every route: the Host name, limits on body size and time, and counters."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, MutableMapping
from typing import Any

import msgspec
from starlette.types import ASGIApp, Message, Receive, Send

from redhost_serve.metrics import Metrics
from redhost_serve.problems import HttpProblem
from redhost_serve.wire import Failure

__all__ = ["LOOPBACK", "RequestLimits"]


LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
"""Names of this machine."""


class _GoneError(Exception):
    """The client disconnected."""


class RequestLimits:
    """An ASGI middleware that passes on complete bodies only.

    A body that is too long is refused when its length is announced, or at the first byte over the
    limit; the route never receives it.

    Args:
        app: The application.
        limit: Maximum number of bytes in a body.
        seconds: Seconds in which a client has to send it.
        metrics: The metrics in which requests are counted.
        hosts: Accepted Host names, in addition to loopback and the address of the connection.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        limit: int,
        seconds: float,
        metrics: Metrics,
        hosts: Collection[str] = (),
    ) -> None:
        self.app, self.limit, self.seconds, self.metrics = app, limit, seconds, metrics
        self.hosts = {*LOOPBACK, *map(str.lower, hosts)}

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status = time.perf_counter(), 0

        async def counted(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            self._require_own_host(scope)
            body = await self._body(scope, receive)
            await self.app(scope, _replay(body, receive), counted)
        except _GoneError:
            return
        except HttpProblem as problem:
            await _refuse(problem, counted)
        route = getattr(scope.get("route"), "path", "other")
        self.metrics.requests.labels(route, str(status)).inc()
        self.metrics.seconds.labels(route).observe(time.perf_counter() - start)

    def _require_own_host(self, scope: MutableMapping[str, Any]) -> None:
        """Refuse an unknown Host name, which protects against DNS rebinding.

        Raises:
            HttpProblem: 400.
        """
        ours = self.hosts | {str((scope.get("server") or ("",))[0])}
        for value in (v for name, v in scope["headers"] if name == b"host"):
            if _host(value) not in ours:
                raise HttpProblem(400, "the Host header is not a name of this server")

    async def _body(self, scope: MutableMapping[str, Any], receive: Receive) -> bytes:
        """Return the whole body.

        Raises:
            HttpProblem: 413 if it is too long, 408 if it takes too long.
        """
        length = dict(scope["headers"]).get(b"content-length", b"0")
        if not length.isdigit() or int(length[:20]) > self.limit:
            raise self._too_long()
        try:
            async with asyncio.timeout(self.seconds):
                return await self._read(receive)
        except TimeoutError:
            reason = f"the body did not come within {self.seconds:g} seconds"
            raise HttpProblem(408, reason, headers={"Connection": "close"}) from None

    async def _read(self, receive: Receive) -> bytes:
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _GoneError
            body += message.get("body", b"")
            if len(body) > self.limit:
                raise self._too_long()
            if not message.get("more_body", False):
                return bytes(body)

    def _too_long(self) -> HttpProblem:
        return HttpProblem(413, f"the body has more than {self.limit} bytes")


def _host(value: bytes) -> str:
    """Return the name or address in a Host header, without its port."""
    text = value.decode("latin-1").strip().lower()
    return text[1:].partition("]")[0] if text.startswith("[") else text.partition(":")[0]


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that yields the body once, then the client's further messages."""
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


async def _refuse(problem: HttpProblem, send: Send) -> None:
    body = msgspec.json.encode(Failure(error=problem.reason))
    headers = {
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        **problem.headers,
    }
    raw_headers = [(k.lower().encode(), v.encode()) for k, v in headers.items()]
    await send({"type": "http.response.start", "status": problem.status, "headers": raw_headers})
    await send({"type": "http.response.body", "body": body})
