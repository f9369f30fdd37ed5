"""One request: choose its expert, send it to an upstream, and pass the answer on byte by byte.

A request is sent again only before the first byte of an answer: also to another upstream where one
says that it has too much to do. Once that has been passed on, an
upstream that breaks off ends the answer: with an error event in a stream of events, else by closing
the connection. A client that disconnects ends the request at the upstream.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from codecs import BOM_UTF8
from collections.abc import Coroutine, MutableMapping
from typing import Any

import httpx2
import msgspec
from starlette.types import Receive, Send

from redhost_gateway.choosing import BACKBONE
from redhost_gateway.gateway import Choice, Gateway
from redhost_gateway.problems import NoAdapterProblem, Problem
from redhost_gateway.tracing import trace_headers
from redhost_gateway.upstream import Answer, Headers, Upstream, pick
from redhost_gateway.usage import EVENTS, editor_for, wants_usage

__all__ = ["Proxy"]

log = logging.getLogger("redhost.gateway")

AsgiScope = MutableMapping[str, Any]

HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer"
    b" transfer-encoding upgrade".split()
)
NOT_SENT = HOP_BY_HOP | {b"host", b"content-length", b"expect"}
EVENT_END = (b"\n\n", b"\r\n\r\n", b"\r\r")
RESERVED = frozenset({"load_lora_adapter", "unload_lora_adapter"})
"""Paths of upstreams that change them; the gateway alone asks for these."""

NOTED = frozenset({"/v1/chat/completions", "/v1/completions"})
"""Paths whose answers have the choice in their `usage`."""

ESCAPED = re.compile(rb"\\u00(6[cdfCDF45])")
"""A letter of `model` that is escaped."""

ENCODING = b"accept-encoding"
NOT_FOUND, BUSY = 404, frozenset({429, 503})

SILENT = "Server disconnected without sending a response."
"""What httpx says if a connection ends before the first byte."""

CONNECTING = (httpx2.ConnectTimeout, httpx2.PoolTimeout)
"""Time-outs after which nothing was sent."""


class _GoneError(Exception):
    """The client disconnected."""


class Proxy:
    """The ASGI application of all paths under ``/v1``.

    Args:
        gateway: The state.
    """

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Answer one request, unless its client disconnects first."""
        gateway = self.gateway
        exchange = Exchange(gateway, scope, send)
        gateway.in_progress += 1
        try:
            exchange.check(in_progress=gateway.in_progress)
            body = await exchange.read(receive)
            await _unless_gone(exchange.answer(body), receive)
        except _GoneError:
            exchange.status = "gone"
        except Problem as problem:
            await exchange.refuse(problem)
        finally:
            gateway.in_progress -= 1
            gateway.metrics.requests.labels(exchange.by, str(exchange.status)).inc()


class Exchange:
    """A request and its answer.

    Args:
        gateway: The state.
        scope: The request.
        send: Sends the answer.
    """

    def __init__(self, gateway: Gateway, scope: AsgiScope, send: Send) -> None:
        self.gateway, self.scope, self.send = gateway, scope, send
        self.headers: Headers = scope["headers"]
        query = scope.get("query_string", b"")
        self.path = scope.get("raw_path", scope["path"].encode()).partition(b"?")[0]
        self.path += b"?" + query if query else b""
        self.by, self.status = "none", "0"
        self.body, self.fields = b"", dict[str, msgspec.Raw]()
        self.choice: Choice | None = None
        self._tried = list[Upstream]()
        self._busy: tuple[Upstream, Answer] | None = None
        self.begun = time.perf_counter()

    def check(self, *, in_progress: int) -> None:
        """Refuse two lengths, paths that change an upstream, and more requests than the limit.

        Raises:
            Problem: 400, 403 or 429.
        """
        if {b"content-length", b"transfer-encoding"} <= {name for name, _ in self.headers}:
            reason = "the request has two lengths, of which proxies may read either"
            raise Problem(400, reason, code="two_lengths", closes=True)
        parts = self.scope["path"].strip("/").split("/")
        if not {".", ".."}.isdisjoint(parts):
            raise Problem(400, "the path has parts . or ..", code="invalid_path")
        if parts[-1] in RESERVED:
            raise Problem(403, "adapters are loaded by the gateway alone", code="forbidden_path")
        if in_progress > self.gateway.limits.requests:
            raise Problem(
                429, "too many requests are in progress", code="too_many_requests", retry_after=1
            )

    async def read(self, receive: Receive) -> bytes:
        """Return the request's body.

        Raises:
            Problem: 413 if it is too long.
        """
        most, body, more = self.gateway.limits.body, bytearray(), True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _GoneError
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > most:
                reason = f"the body has more than {most} bytes"
                raise Problem(413, reason, code="body_too_long", closes=True)
        return bytes(body)

    async def answer(self, body: bytes) -> None:
        """Choose, and pass on.

        Raises:
            Problem: If the gateway has to answer itself.
        """
        fields = self._read_fields(body) if self.scope["method"] == "POST" else None
        self.body, self.fields = body, fields or {}
        self.choice = None if fields is None else await self.gateway.choose(fields)
        try:
            await self._pass_on()
        finally:
            self.gateway.done(self.choice)
            await self._keep(None)

    def _read_fields(self, body: bytes) -> dict[str, msgspec.Raw] | None:
        """Return the fields of a body; None if it is no JSON object, which the upstream will say.

        Raises:
            Problem: If an upstream could read another model in it than the gateway.
        """
        encodings = {v.strip().lower() for k, v in self.headers if k == b"content-encoding"}
        if body and encodings - {b"", b"identity"}:
            raise Problem(
                415, "the gateway reads no Content-Encoding; send it as it is", code="encoded_body"
            )
        fields = _fields(body)
        if fields is not None and _may_name_twice(body) and _names_twice(body):
            raise Problem(400, "the body has 'model' twice; name one", code="duplicate_model")
        return fields

    async def _pass_on(self) -> None:
        """Send the request to an upstream, and to others while no byte of an answer came."""
        gateway, tried, choice = self.gateway, self._tried, self.choice
        problem: Problem | None = None
        name = _text(self.fields.get("model")) if choice is None else choice.expert
        for attempt in range(gateway.limits.retries + 1):
            upstream = pick(gateway.upstreams, name, tried, chosen=choice is not None)
            if self._busy is not None and upstream in tried:
                break
            if attempt:
                gateway.metrics.retries.labels(upstream.url).inc()
            more = attempt < gateway.limits.retries
            try:
                if await self._once(upstream, name, more=more):
                    return
            except (httpx2.LocalProtocolError, httpx2.InvalidURL) as e:
                raise Problem(400, "the request cannot be sent on", code="invalid_request") from e
            except (httpx2.ReadTimeout, httpx2.WriteTimeout) as e:
                raise _timed_out() from e
            except httpx2.RemoteProtocolError as e:
                if str(e) != SILENT:  # it has answered, in its way: another one may not as well
                    log.warning("%s sent no HTTP: %s", upstream.url, e)
                    raise _unreadable() from e
                problem = self._failed(upstream, e)
            except NoAdapterProblem as e:
                problem = e
                tried.append(upstream)
            except httpx2.TransportError as e:
                problem = self._failed(upstream, e)
        if self._busy is not None:
            await self._deliver(*self._busy)
        elif problem is not None:
            raise problem

    def _failed(self, upstream: Upstream, error: httpx2.TransportError) -> Problem:
        """Note that an upstream began no answer; return what the client gets if none does."""
        upstream.down(error)
        self._tried.append(upstream)
        return _timed_out() if isinstance(error, CONNECTING) else _unreachable(upstream, error)

    async def _once(self, upstream: Upstream, name: str | None, *, more: bool) -> bool:
        """Let one upstream answer; return whether it did.

        Args:
            upstream: The upstream.
            name: The model's name.
            more: Whether the request may be sent again.

        Raises:
            TransportError: If no byte of an answer came.
        """
        choice, body, gateway = self.choice, self.body, self.gateway
        if choice is not None:
            own = await gateway.fields_for(upstream, choice)
        else:
            own = await gateway.fields_of_none(upstream, self.fields, name)
        if own:
            body = msgspec.json.encode({**self.fields, **own})
        answer = await upstream.send(self.scope["method"], self.path, self._sent(), body)
        waits = False
        try:
            if answer.status == NOT_FOUND and more and choice is not None:
                if gateway.lost(upstream, choice):
                    return False  # it restarted: the adapter is loaded again
            elif answer.status in BUSY:
                upstream.pause(answer.headers)
                self._tried.append(upstream)
                left = [u for u in gateway.upstreams if u not in self._tried]
                if more and any(u.may_have(name, chosen=choice is not None) for u in left):
                    waits = True
                    await self._keep((upstream, answer))
                    return False
            await self._keep(None)
            await self._deliver(upstream, answer)
        finally:
            if not waits:
                await answer.close()
        return True

    async def _keep(self, busy: tuple[Upstream, Answer] | None) -> None:
        """Keep an upstream's refusal, in case that no other one answers, instead of another's."""
        before, self._busy = self._busy, busy
        if before is not None:
            await before[1].close()

    async def _deliver(self, upstream: Upstream, answer: Answer) -> None:
        """Pass an upstream's answer on."""
        self.by, self.status = upstream.url, str(answer.status)
        self.gateway.metrics.first.observe(time.perf_counter() - self.begun)
        await self._stream(answer)

    def _sent(self) -> Headers:
        """Return the headers that an upstream gets."""
        dropped = NOT_SENT | _named_by_connection(self.headers)
        traced = trace_headers()
        names = {name.encode() for name in traced}
        sent = [(k, v) for k, v in self.headers if k not in dropped and k not in names]
        sent += ((k.encode(), v.encode()) for k, v in traced.items())
        if self._adds():
            sent = [(k, v) for k, v in sent if k != ENCODING] + [(ENCODING, b"identity")]
        return sent

    def _adds(self) -> bool:
        """Return whether the choice is added to the answer's `usage`."""
        named = self.choice is None or self.choice.chosen is None
        return not named and self.scope["path"] in NOTED and wants_usage(self.body)

    async def _stream(self, answer: Answer) -> None:
        """Pass an answer on as it comes."""
        raw = [(k.lower(), v) for k, v in answer.headers]
        kind = dict(raw)
        dropped = HOP_BY_HOP | _named_by_connection(raw)
        if b"transfer-encoding" in kind:  # which alone counts, if a server names a length as well
            dropped |= {b"content-length"}
        editor = editor_for(kind, _note(self.choice)) if self.choice and self._adds() else None
        if editor is not None:
            dropped |= {b"content-length"}
        own = self._own()
        headers = [(k, v) for k, v in raw if k not in dropped and k not in own]
        await self._begin(answer.status, [*headers, *own.items()])
        end = b"\n\n"
        events = kind.get(b"content-type", b"").startswith(EVENTS)
        try:
            async for part in answer.raw():
                passed = part if editor is None else editor.feed(part)
                await self._more(passed)
                end = (end + passed)[-4:]
            if editor is not None:
                await self._more(editor.end())
        except httpx2.TransportError as e:
            log.warning("%s broke off an answer: %s", self.by, type(e).__name__)
            self.gateway.metrics.broken.labels(self.by).inc()
            framed = {b"content-length", b"content-encoding"} & kind.keys()
            if not events or framed or not end.endswith(EVENT_END):
                return  # without its end, the connection is closed
            problem = Problem(502, "the upstream broke off its answer", code="upstream_broke_off")
            await self._more(b"data: " + problem.body + b"\n\n")
        await self.send({"type": "http.response.body", "body": b""})

    async def refuse(self, problem: Problem) -> None:
        """Answer a problem."""
        self.status, body = str(problem.status), problem.body
        headers = {**problem.headers, "content-length": str(len(body))}
        sent = [(k.encode(), v.encode()) for k, v in headers.items()]
        await self._begin(problem.status, [*sent, *self._own().items()])
        await self.send({"type": "http.response.body", "body": body})

    def _own(self) -> dict[bytes, bytes]:
        """Return the headers that say what was chosen, if it was."""
        return {} if self.choice is None else _headers(self.choice)

    async def _begin(self, status: int, headers: Headers) -> None:
        await self.send({"type": "http.response.start", "status": status, "headers": headers})

    async def _more(self, part: bytes) -> None:
        if part:
            await self.send({"type": "http.response.body", "body": part, "more_body": True})


async def _unless_gone(work: Coroutine[Any, Any, None], receive: Receive) -> None:
    """Do work unless the client disconnects, which cancels it.

    Raises:
        _GoneError: If it does.
    """
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise _GoneError
        await task
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _fields(body: bytes) -> dict[str, msgspec.Raw] | None:
    """Return the fields of a body; None if it is no JSON object, which is the upstream's to say."""
    try:
        return msgspec.json.decode(body.removeprefix(BOM_UTF8), type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _may_name_twice(body: bytes) -> bool:
    """Return whether a body may have two keys `model`, also with escaped letters."""
    return body.count(b'"model"') > 1 or ESCAPED.search(body) is not None


def _names_twice(body: bytes) -> bool:
    """Return whether the object of a body has two keys `model`; inner ones may have their own.

    Raises:
        Problem: 400 if it cannot be read.
    """
    last = list[int]()

    def count(pairs: list[tuple[str, Any]]) -> None:
        last[:] = [sum(key == "model" for key, _ in pairs)]

    try:
        json.loads(body, object_pairs_hook=count, parse_int=float)
    except (ValueError, RecursionError) as e:
        raise Problem(
            400, "the body is no JSON that the gateway can read", code="unreadable_body"
        ) from e
    return last[0] > 1


def _text(raw: msgspec.Raw | None) -> str | None:
    try:
        return None if raw is None else msgspec.json.decode(raw, type=str)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _named_by_connection(headers: Headers) -> frozenset[bytes]:
    values = (v for k, v in headers if k == b"connection")
    return frozenset(name.strip().lower() for v in values for name in v.split(b","))


def _headers(choice: Choice) -> dict[bytes, bytes]:
    """Return the headers that say what was chosen."""
    found = {
        "expert": choice.expert,
        "generation": str(choice.serving.number),
    }
    if choice.chosen is not None:
        found["declined"] = str(choice.chosen.declined).lower()
        weights = choice.chosen.weights.items()
        found["weights"] = ",".join(f"{column}={weight:.4f}" for column, weight in weights)
    return {f"x-redhost-{k}".encode(): v.encode("latin-1", "replace") for k, v in found.items()}


def _note(choice: Choice) -> dict[str, object]:
    """Return what an answer's `usage` says of the choice."""
    return {
        "expert": choice.expert,
        "weight": None if choice.chosen is None else round(choice.chosen.weight, 4),
        "generation": choice.serving.number,
        "declined": choice.expert == BACKBONE,
    }


def _unreachable(upstream: Upstream, error: Exception) -> Problem:
    why = f"{upstream.place}: {type(error).__name__}"
    reason = f"no upstream answers ({why}); start it, or name another one with --upstream"
    return Problem(502, reason, code="upstream_unreachable")


def _unreadable() -> Problem:
    return Problem(502, "the upstream's answer is no HTTP", code="upstream_broke_off")


def _timed_out() -> Problem:
    return Problem(504, "the upstream did not answer in time", code="upstream_timeout")
