"""Conversion between bytes and structs: decode bodies, encode replies, describe the OpenAPI."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Mapping, MutableMapping
from contextlib import AsyncExitStack, aclosing
from functools import partial
from typing import Any, TypeVar

import anyio.to_thread
import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Send

import redhost
from redhost_serve.problems import HttpProblem, problem_of
from redhost_serve.threads import error_name, run_contained
from redhost_serve.wire import Failure, decode

__all__ = [
    "EVENTS",
    "EventStream",
    "body",
    "event",
    "reply",
    "request_body_for",
    "responses_for",
    "run_in_thread",
]

log = logging.getLogger("redhost.serve")

S = TypeVar("S", bound=msgspec.Struct)
R = TypeVar("R")

EVENTS = "text/event-stream"

REASONS = {
    400: "The body does not match the schema of this route.",
    401: "The token is missing or wrong.",
    403: "Changes are made from this machine only.",
    404: "There is no such model, generation or expert.",
    408: "The body took too long to arrive.",
    409: "Another change is in progress.",
    412: "The served generation is not the expected one.",
    413: "The body is too long.",
    415: "The body is encoded otherwise than by gzip.",
    422: "It cannot be composed or served; the old generation is still served.",
    431: "The headers are too long, or too many.",
    503: "Unavailable now: too many requests wait, nothing is served, or the server stops.",
}


def reply(value: object, *, status: int = 200) -> Response:
    """Answer with JSON."""
    return Response(msgspec.json.encode(value), status, media_type="application/json")


class EventStream(StreamingResponse):
    """Server-sent events whose resources are released when the response ends, for any reason.

    If a client disconnects before the first event is requested, the generator was never started,
    and closing it would release nothing.

    Args:
        events: The events.
        under_way: The resources to release.
    """

    def __init__(self, events: AsyncGenerator[bytes, None], under_way: AsyncExitStack) -> None:
        super().__init__(events, media_type=EVENTS)
        self.events, self.under_way = events, under_way

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Send the events."""
        async with self.under_way, aclosing(self.events):
            await super().__call__(scope, receive, send)


def event(name: str, value: object) -> bytes:
    """Return a server-sent event; the JSON contains no line breaks."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode(value))


async def body(request: Request, kind: type[S]) -> S:
    """Decode the body of a request."""
    return decode(await request.body(), kind)


async def run_in_thread(work: Callable[[], R], *, otherwise: int = 503) -> R:
    """Run blocking work in a thread; convert its errors into problems.

    Args:
        work: The function to run.
        otherwise: The status of errors without a status of their own.
    """
    try:
        return await anyio.to_thread.run_sync(partial(run_contained, work))
    except redhost.RedhostError as e:
        raise problem_of(e, otherwise=otherwise) from None
    except HttpProblem:
        raise
    except Exception as e:
        log.exception("a request failed")
        raise HttpProblem(503, f"the server failed on this: {error_name(e)}") from None


def responses_for(
    kind: object, *statuses: int, failure: type[msgspec.Struct] = Failure
) -> dict[int | str, dict[str, Any]]:
    """Return the responses of a route for the OpenAPI: 200 of a kind, and failures."""
    return {
        200: {"description": "Done.", "content": _content(kind)},
        **{
            status: {"description": REASONS[status], "content": _content(failure)}
            for status in sorted({408, 413, 415, 431, *statuses})
        },
    }


def request_body_for(kind: type[msgspec.Struct], *, required: bool = True) -> dict[str, Any]:
    """Return the request body of a route, for the OpenAPI."""
    return {"requestBody": {"required": required, "content": _content(kind)}}


def _content(kind: object) -> Mapping[str, Any]:
    if kind is str:
        return {"text/plain": {"schema": {"type": "string"}}}
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        schema = {"$ref": f"#/components/schemas/{kind.__name__}"}
    else:
        schema = {"type": "array" if kind is list else "object"}
    return {"application/json": {"schema": schema}}
