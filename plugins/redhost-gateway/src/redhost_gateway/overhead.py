"""What a gateway adds to an answer: the same requests with it and without, one after the other."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from redhost_gateway.faulty_upstream import BASE
from redhost_gateway.processes import free_ports, gateway_process, upstream_process
from redhost_gateway.settings import Limits, UpstreamSettings
from redhost_gateway.upstream import Upstream

__all__ = ["overhead"]

ROUNDS = 500
STREAMS = 20
DELAY = 0.01
"""Seconds between two tokens of a streamed answer, as a fast engine takes."""

LONG = 50
"""Tokens of a streamed answer."""

Ask = Callable[[int], Awaitable[None]]


async def overhead(home: Path) -> dict[str, Any]:
    """Time requests straight to an upstream, and through a gateway over a home."""
    short = await _timed(home, tokens=1, delay=0.0, rounds=ROUNDS)
    streamed = await _timed(home, tokens=LONG, delay=DELAY, rounds=STREAMS)
    return {"rounds": ROUNDS, "streams": STREAMS, "p50": short, "streamed_p50": streamed}


async def _timed(home: Path, *, tokens: int, delay: float, rounds: int) -> dict[str, float]:
    """Return the median seconds of an answer: straight, with a name, and with `auto`."""
    [port] = free_ports(1)
    direct = Upstream(UpstreamSettings(url=f"http://127.0.0.1:{port}"), limits=Limits())
    stream = tokens > 1
    with (
        upstream_process(port, tokens=tokens, delay=delay),
        gateway_process(home, direct.url) as url,
    ):
        through = Upstream(UpstreamSettings(url=url), limits=Limits())
        ways = {
            "direct": _asking(direct, BASE, stream=stream),
            "named": _asking(through, BASE, stream=stream),
            "auto": _asking(through, "auto", stream=stream),
        }
        try:
            return await _p50(ways, rounds=rounds)
        finally:
            await direct.close()
            await through.close()


async def _p50(ways: dict[str, Ask], *, rounds: int) -> dict[str, float]:
    """Return the median seconds of each way, which take turns."""
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for n in range(-5, rounds):
        for way, ask in ways.items():
            start = time.perf_counter()
            await ask(n)
            if n >= 0:  # the first ones open connections
                seconds[way].append(time.perf_counter() - start)
    return {way: median(took) for way, took in seconds.items()}


def _asking(upstream: Upstream, model: str, *, stream: bool) -> Ask:
    """Return the function that sends the request of a number, and reads its answer."""

    async def ask(n: int) -> None:
        message = {"role": "user", "content": f"What is {n % 50} plus {n}?"}
        content = {"model": model, "messages": [message], "user": str(n), "stream": stream}
        body, headers = msgspec.json.encode(content), [(b"content-type", b"application/json")]
        answer = await upstream.send("POST", b"/v1/chat/completions", headers, body)
        try:
            async for _ in answer.raw():
                pass
        finally:
            await answer.close()

    return ask
