"""Traffic of the last minute by expert: counts by second and expert, and no text."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from fastapi import APIRouter
from starlette.responses import Response, StreamingResponse

import redhost
from redhost_serve.reply import EVENTS, event, reply, responses_for
from redhost_serve.wire import ExpertTraffic, TrafficReply

__all__ = ["LastMinute", "traffic_routes"]

WINDOW = 60
"""Length of the window, in seconds."""

EVERY = 1.0
"""Seconds between two events."""


@dataclass(eq=False)
class _Counts:
    """Sums over the texts of one expert."""

    texts: int = 0
    weight: float = 0.0
    declined: int = 0
    seconds: float = 0.0

    def add(self, other: _Counts) -> None:
        self.texts += other.texts
        self.weight += other.weight
        self.declined += other.declined
        self.seconds += other.seconds


@dataclass(eq=False)
class _Second:
    """Counts of the answers within one second."""

    at: int
    columns: dict[str, _Counts] = field(default_factory=dict)


class LastMinute:
    """Counts of the last minute; called from the server's event loop only.

    Args:
        clock: Returns the time in seconds.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seconds = deque[_Second]()

    def answered(self, answers: Sequence[redhost.Answer], *, seconds: float) -> None:
        """Count the answers to one request.

        Args:
            answers: The answers.
            seconds: How long the request waited for them.
        """
        columns = self._now().columns
        for answer in answers:
            for column, weight in answer.weights.items():
                columns.setdefault(column, _Counts()).weight += weight
            heaviest = max(answer.weights, key=answer.weights.__getitem__)
            columns[heaviest].add(_Counts(texts=1, declined=int(answer.declined), seconds=seconds))

    def report(self, generation: int | None) -> TrafficReply:
        """Return the last minute's shares, the largest first."""
        self._forget()
        sums: dict[str, _Counts] = {}
        for second in self._seconds:
            for column, counts in second.columns.items():
                sums.setdefault(column, _Counts()).add(counts)
        texts = sum(c.texts for c in sums.values())
        experts = [
            ExpertTraffic(
                expert=column,
                texts=c.texts,
                share=c.texts / texts,
                weight=c.weight / texts,
                declined=c.declined / c.texts if c.texts else None,
                seconds=c.seconds / c.texts if c.texts else None,
            )
            for column, c in sums.items()
        ]
        experts.sort(key=lambda e: (-e.share, -e.weight, e.expert))
        return TrafficReply(generation=generation, window=WINDOW, texts=texts, experts=experts)

    def _now(self) -> _Second:
        self._forget()
        at = int(self._clock())
        if not self._seconds or self._seconds[-1].at != at:
            self._seconds.append(_Second(at))
        return self._seconds[-1]

    def _forget(self) -> None:
        oldest = int(self._clock()) - WINDOW
        while self._seconds and self._seconds[0].at <= oldest:
            self._seconds.popleft()


def traffic_routes(
    report: Callable[[str | None], TrafficReply], ended: Callable[[], bool]
) -> APIRouter:
    """Return the routes that show the last minute, once and as a stream.

    Args:
        report: Returns the traffic of a named question, or of the default question.
        ended: Whether the server is about to stop: open streams would delay it.
    """
    routes = APIRouter(tags=["listing"])

    async def traffic(question: str | None = None) -> Response:
        """Show the traffic of the last minute, by expert."""
        return reply(report(question))

    async def events(question: str | None = None) -> Response:
        first = report(question)  # raises 404 if there is no such question

        async def reports() -> AsyncIterator[bytes]:
            yield event("traffic", first)
            while not ended():
                yield event("traffic", report(question))
                await asyncio.sleep(EVERY)

        return StreamingResponse(
            reports(), media_type=EVENTS, headers={"Cache-Control": "no-store"}
        )

    routes.add_api_route("/v1/traffic", traffic, responses=responses_for(TrafficReply, 404))
    # Not in the OpenAPI, like the page that uses it: the stream does not end.
    routes.add_api_route("/v1/traffic/events", events, include_in_schema=False)
    return routes
