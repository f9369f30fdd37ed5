"""`redhost gateway-storm`: requests through a gateway whose upstreams fail, and what it costs.

Each request has an id, which the upstream echoes: in every event of a stream, or once. So an answer
of another request is noticed, and so is a request without any answer.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import msgspec
from redhost_serve.process import compose_home

from redhost_gateway.faulty_upstream import TOKENS
from redhost_gateway.overhead import overhead
from redhost_gateway.processes import free_ports, gateway_process, restarting, upstream_process
from redhost_gateway.settings import Limits, UpstreamSettings
from redhost_gateway.upstream import Upstream

__all__ = ["BEHAVIOURS", "Outcomes", "is_own", "measure", "storm"]

BEHAVIOURS: Mapping[str, tuple[float, frozenset[str]]] = {
    "": (0.87, frozenset({"200"})),
    "slow:0.05": (0.03, frozenset({"200"})),
    "slow:9": (0.001, frozenset({"504"})),
    "drop": (0.02, frozenset({"502"})),
    "drop-first": (0.03, frozenset({"200"})),
    "break": (0.02, frozenset({"broken"})),
    "status:429": (0.015, frozenset({"429"})),
    "status:500": (0.014, frozenset({"500"})),
}
"""How upstreams behave → the share of requests, and what may come of them. While one restarts, any
may also be `RESTARTED`."""

RESTARTED = frozenset({"502", "broken"})

HUNG = 60.0
"""Seconds after which a request without an answer counts as hung."""

TEXTS = ("What is 8 plus 9?", "What is 37 plus 12?", "What is 50 plus 49?")
TURN = 5.0
"""Seconds between two restarts of an upstream."""


@dataclass
class Outcomes:
    """What came of the requests.

    Attributes:
        counts: Behaviour → outcome → number.
        of_another: Answers with another request's id.
        hung: Requests without an answer.
        unexpected: Outcomes that neither the behaviour nor a restart explains.
        seconds: How long it took.
    """

    counts: dict[str, Counter[str]] = field(default_factory=dict)
    of_another: int = 0
    hung: int = 0
    unexpected: int = 0
    seconds: float = 0.0

    def add(self, behaviour: str, outcome: str) -> None:
        """Count a request."""
        self.counts.setdefault(behaviour or "plain", Counter())[outcome] += 1
        allowed = BEHAVIOURS[behaviour][1] | RESTARTED
        self.of_another += outcome == "other"
        self.hung += outcome == "hung"
        self.unexpected += outcome not in allowed | {"other", "hung"}


async def storm(
    url: str,
    *,
    requests: int,
    clients: int,
    seed: int = 0,
    progress: Callable[[int], None] = lambda _: None,
) -> Outcomes:
    """Send requests of every behaviour through a gateway.

    Args:
        url: Its address.
        requests: How many.
        clients: How many at a time.
        seed: Decides the order of behaviours.
        progress: Called with the number of requests that ended.
    """
    draw = random.Random(seed)  # noqa: S311  (an order, and no secret)
    names, shares = list(BEHAVIOURS), [share for share, _ in BEHAVIOURS.values()]
    behaviours = draw.choices(names, shares, k=requests)
    found, ids = Outcomes(), iter(range(requests))
    client = Upstream(UpstreamSettings(url=url), limits=Limits(read=HUNG))
    start = time.perf_counter()

    async def ask() -> None:
        for n in ids:
            behaviour = behaviours[n]
            found.add(behaviour, await _outcome(client, n, behaviour))
            progress(1)

    try:
        await asyncio.gather(*(ask() for _ in range(clients)))
    finally:
        await client.close()
    found.seconds = time.perf_counter() - start
    return found


async def _outcome(client: Upstream, n: int, behaviour: str) -> str:
    """Send one request, a third of them streamed; return its status, or what is wrong with it."""
    user, stream = f"id-{n}", n % 3 == 0
    message = {"role": "user", "content": TEXTS[n % len(TEXTS)]}
    content = {"model": "auto", "messages": [message], "user": user, "stream": stream}
    body = msgspec.json.encode({**content, "behave": behaviour})
    headers = [(b"content-type", b"application/json")]
    try:
        async with asyncio.timeout(HUNG):
            answer = await client.send("POST", b"/v1/chat/completions", headers, body)
            try:
                data = b"".join([part async for part in answer.raw()])
            finally:
                await answer.close()
    except TimeoutError:
        return "hung"
    except httpx2.TransportError:
        return "broken"
    if b'"upstream_broke_off"' in data:
        return "broken"
    if answer.status in {200, 429, 500} and not is_own(data, user, stream=stream):
        return "other"
    return str(answer.status)


def is_own(data: bytes, user: str, *, stream: bool) -> bool:
    """Return whether an answer has its request's id, and no other."""
    if not stream or not data.startswith(b"data: "):
        found = msgspec.json.decode(data)
        return user in {found.get("id"), found.get("error", {}).get("message")}
    events = [line.removeprefix(b"data: ") for line in data.split(b"\n\n") if line]
    ids = [msgspec.json.decode(event)["id"] for event in events if event != b"[DONE]"]
    return ids == [user] * TOKENS


def measure(*, requests: int, clients: int, progress: Callable[[int], None]) -> dict[str, Any]:
    """Run the storm, then time what the gateway costs; return the figures of both."""
    with tempfile.TemporaryDirectory() as folder:
        home = compose_home(Path(folder, "home")).home
        return {
            "storm": asyncio.run(
                _measured(home, requests=requests, clients=clients, progress=progress)
            ),
            "overhead": asyncio.run(overhead(home)),
        }


async def _measured(
    home: Path, *, requests: int, clients: int, progress: Callable[[int], None]
) -> dict[str, Any]:
    ports = free_ports(2)
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    with upstream_process(ports[0]):
        async with restarting(ports[1], every=TURN) as restarts:
            with gateway_process(home, *urls) as url:
                found = await storm(url, requests=requests, clients=clients, progress=progress)
    return {
        "requests": requests,
        "clients": clients,
        "restarts": restarts[0],
        "seconds": found.seconds,
        "of_another": found.of_another,
        "hung": found.hung,
        "unexpected": found.unexpected,
        "counts": {behaviour: dict(counts) for behaviour, counts in found.counts.items()},
    }
