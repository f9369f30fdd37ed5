"""Checks before every route: the Host name, limits on headers, body and time, and counters."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Collection, Mapping, MutableMapping
from typing import Any

import msgspec
from starlette.types import ASGIApp, Message, Receive, Send

from redhost_serve.encodings import decoded
from redhost_serve.metrics import Metrics
from redhost_serve.openai_wire import failure_at
from redhost_serve.problems import HttpProblem

__all__ = ["HEAD_BYTES", "LOOPBACK", "RequestLimits", "raw_headers", "refusal"]

AsgiScope = MutableMapping[str, Any]

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
"""Names of this machine."""

HEAD_BYTES, HEADERS = 2**16, 100
"""Most bytes of a request's line and headers, and most headers."""

DRAINED = 64
"""How many times the limit of a body is read of a body over the limit, so that the client, which
may read nothing before it has sent everything, sees why it is refused."""

LAST_PORT = 65535
HOST = re.compile(rb"(?:\[([0-9a-f]*:[0-9a-f:.]+)\]|([a-z0-9_.-]+))(?::([0-9]{1,5}))?")


class _GoneError(Exception):
    """The client disconnected."""


class _Incoming:
    """The body of a request as it arrives.

    Args:
        receive: The request's channel.
        seconds: Seconds from now in which all of it has to arrive.
    """

    def __init__(self, receive: Receive, *, seconds: float) -> None:
        self.receive, self.ended = receive, False
        self.deadline = asyncio.get_running_loop().time() + seconds

    async def read(self) -> bytes:
        """Return the next bytes.

        Raises:
            _GoneError: If the client disconnects.
        """
        message = await self.receive()
        if message["type"] == "http.disconnect":
            raise _GoneError
        self.ended = not message.get("more_body", False)
        return bytes(message.get("body", b""))

    async def drain(self, most: int) -> None:
        """Read and forget the bytes to come until the end, the deadline, or a number of bytes."""
        with contextlib.suppress(TimeoutError, _GoneError):
            async with asyncio.timeout_at(self.deadline):
                while not self.ended and most > 0:
                    most -= len(await self.read())


class RequestLimits:
    """An ASGI middleware that passes on complete bodies only, and answers HEAD as GET.

    A body that is too long is refused when its length is announced, or at the first byte over the
    limit; the route never receives it.

    Args:
        app: The application.
        limit: Maximum number of bytes in a body, before and after it is decoded.
        seconds: Seconds in which a client has to send it.
        metrics: The metrics in which requests are counted.
        hosts: Accepted Host names, in addition to loopback and the address of the connection.
        root_path: The prefix of all paths behind a proxy, which may pass it on or strip it.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        limit: int,
        seconds: float,
        metrics: Metrics,
        hosts: Collection[str] = (),
        root_path: str = "",
    ) -> None:
        self.app, self.limit, self.seconds, self.metrics = app, limit, seconds, metrics
        self.hosts = {*LOOPBACK, *map(str.lower, hosts)}
        self.root_path = root_path

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status = time.perf_counter(), 0

        async def counted(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            if "status" in message:
                nosniff = (b"x-content-type-options", b"nosniff")
                message = {**message, "headers": [*message.get("headers", ()), nosniff]}
            await send(message)

        scope, incoming = self._routed(scope), _Incoming(receive, seconds=self.seconds)
        try:
            self._check_head(scope)
            await self._answer(scope, await self._body(scope, incoming), receive, counted)
        except _GoneError:
            return
        except HttpProblem as problem:
            await self._refuse(scope, problem, incoming, counted)
        route = getattr(scope.get("route"), "path", "other")
        self.metrics.requests.labels(route, str(status)).inc()
        self.metrics.seconds.labels(route).observe(time.perf_counter() - start)

    def _routed(self, scope: AsgiScope) -> AsgiScope:
        """Return the scope with the prefix in its path, whether the proxy stripped it or not."""
        path: str = scope["path"]
        if not f"{path}/".startswith(f"{self.root_path}/"):
            path = self.root_path + path
        return {**scope, "path": path, "root_path": self.root_path}

    def _check_head(self, scope: AsgiScope) -> None:
        """Refuse too many headers, and an unknown Host, which protects against DNS rebinding.

        Raises:
            HttpProblem: 431 or 400.
        """
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        size = len(scope["path"]) + len(scope.get("query_string", b""))
        if size + sum(len(k) + len(v) for k, v in headers) > HEAD_BYTES or len(headers) > HEADERS:
            most = f"more than {HEADERS} headers, or {HEAD_BYTES} bytes of them"
            raise HttpProblem(431, f"the request has {most}")
        names = [v for k, v in headers if k == b"host"]
        if not names and scope["http_version"] == "1.0":  # no browser sends this
            return
        ours = self.hosts | {str((scope.get("server") or ("",))[0])}
        if len(names) != 1 or _host(names[0]) not in ours:
            raise HttpProblem(400, "the Host header is not a name of this server")

    async def _body(self, scope: AsgiScope, incoming: _Incoming) -> bytes:
        """Return the whole body, decoded.

        Raises:
            HttpProblem: 413 if it is too long, 408 if it takes too long, 415 if it has an unknown
                encoding, 400 if it cannot be decoded.
        """
        headers = dict(scope["headers"])
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length[:20]) > self.limit:
            raise self._too_long()
        try:
            async with asyncio.timeout_at(incoming.deadline):
                body = await self._read(incoming)
        except TimeoutError:
            reason = f"the body did not come within {self.seconds:g} seconds"
            raise HttpProblem(408, reason) from None
        return decoded(body, headers.get(b"content-encoding", b""), limit=self.limit)

    async def _read(self, incoming: _Incoming) -> bytes:
        body = bytearray()
        while not incoming.ended:
            body += await incoming.read()
            if len(body) > self.limit:
                raise self._too_long()
        return bytes(body)

    def _too_long(self) -> HttpProblem:
        return HttpProblem(413, f"the body has more than {self.limit} bytes")

    async def _answer(self, scope: AsgiScope, body: bytes, receive: Receive, send: Send) -> None:
        """Let the application answer; HEAD has the headers of GET, and ends there."""
        if scope["method"] != "HEAD":
            await self.app(scope, _replay(body, receive), send)
            return
        scope["method"], begun = "GET", asyncio.Event()

        async def send_head(message: Message) -> None:
            if message["type"] == "http.response.start":
                await send(message)
                begun.set()

        async def gone() -> Message:
            await begun.wait()  # a stream without an end is over once it has begun
            return {"type": "http.disconnect"}

        await self.app(scope, _replay(body, gone), send_head)
        await send({"type": "http.response.body", "body": b""})

    async def _refuse(
        self, scope: AsgiScope, problem: HttpProblem, incoming: _Incoming, send: Send
    ) -> None:
        """Answer a problem; if the body is still arriving, drain it within bounds and close."""
        if not incoming.ended:
            problem.headers["Connection"] = "close"
        headers, body = refusal(scope, problem)
        start = {"type": "http.response.start", "status": problem.status}
        await send({**start, "headers": raw_headers(headers)})
        await send({"type": "http.response.body", "body": body, "more_body": True})
        await incoming.drain(DRAINED * self.limit)
        await send({"type": "http.response.body", "body": b""})


def refusal(scope: AsgiScope, problem: HttpProblem) -> tuple[dict[str, str], bytes]:
    """Return the headers and the body of the answer to a problem.

    Args:
        scope: The request.
        problem: The problem.
    """
    path = scope.get("path", "").removeprefix(scope.get("root_path", ""))
    body = msgspec.json.encode(failure_at(path, problem))
    headers = {
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        **problem.headers,
    }
    return headers, body


def raw_headers(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """Return headers as servers send them."""
    return [(k.lower().encode(), v.encode()) for k, v in headers.items()]


def _host(value: bytes) -> str | None:
    """Return the name or address in a Host header, without its port; None if it is malformed."""
    match = HOST.fullmatch(value.strip().lower())
    if match is None or int(match[3] or b"1") not in range(1, LAST_PORT + 1):
        return None
    return (match[1] or match[2]).decode("ascii")


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
