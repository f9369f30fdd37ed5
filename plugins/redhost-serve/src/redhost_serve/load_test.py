"""The load test: clients that never pause while generations change, a third of the swaps broken.

Every answer is compared with the answer that its generation gives without load. It is *mixed* if it
differs, *stale* if its generation was neither served when the request was sent nor published
between then and the answer's arrival, and *failed* if there is no answer at all.
"""

from __future__ import annotations

import bisect
import contextlib
import http.client
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import redhost
from redhost_serve.client import Client, Reply

__all__ = [
    "Golden",
    "Log",
    "Tally",
    "agrees",
    "broken_swaps",
    "clients",
    "distinguishing_texts",
    "golden_answers",
    "golden_answers_in",
    "load_test",
    "output_values",
]

CLOSE = 1e-4
"""Largest accepted difference of a probability or weight: rounding depends on the batch."""

FAR = 0.1
"""Smallest difference of a weight that distinguishes two generations, far above `CLOSE`."""

ABSENT = 999_999
"""A generation that does not exist."""

Golden = Mapping[int, Mapping[str, Sequence[float | str]]]
"""Generation → text → label, probability and weights."""


class Log:
    """Times at which generations were published; answers are checked against it afterwards.

    Args:
        generation: The generation served at the start.
    """

    def __init__(self, generation: int) -> None:
        self.began, self.ended, self.served = [0.0], [0.0], [generation]

    def add(self, *, began: float, ended: float, generation: int) -> None:
        """Record a completed swap."""
        self.began.append(began)
        self.ended.append(ended)
        self.served.append(generation)

    def allowed(self, sent: float, received: float) -> set[int]:
        """Return the generations that may have answered a request."""
        last = bisect.bisect_right(self.ended, sent) - 1  # completed before it was sent
        first_later = bisect.bisect_left(self.began, received)  # begun after the answer arrived
        return set(self.served[last : max(first_later, last + 1)])


@dataclass(eq=False)
class Tally:
    """Results of the clients.

    Attributes:
        seconds: Duration of every request.
        failed: Requests without an answer.
        mixed: Answers that no single generation gives.
        seen: (sent, received, generation) of every answer.
    """

    seconds: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    mixed: list[Reply] = field(default_factory=list)
    seen: list[tuple[float, float, int]] = field(default_factory=list)

    def stale(self, log: Log) -> int:
        """Count the answers of generations that were replaced, or not published yet."""
        return sum(g not in log.allowed(sent, back) for sent, back, g in self.seen)

    def quantile(self, q: float) -> float:
        """Return the seconds that a share q of the requests did not exceed."""
        ordered = sorted(self.seconds)
        return ordered[min(len(ordered) - 1, math.ceil(q * len(ordered)) - 1)]


def golden_answers(
    url: str, numbers: Sequence[int], texts: Sequence[str], *, token: str
) -> dict[int, dict[str, list[float | str]]]:
    """Swap through generations without load and record the answers of each."""
    golden: dict[int, dict[str, list[float | str]]] = {}
    with Client(url, token=token) as client:
        for number in numbers:
            if client.swap(number).status != 200:  # noqa: PLR2004
                raise RuntimeError(f"generation {number} cannot be served")
            golden[number] = {text: output_values(client.infer([text])) for text in texts}
    return golden


def output_values(reply: Reply) -> list[float | str]:
    """Return label, probability and weights of an answer to one text."""
    return [*reply.output("label"), *reply.output("probability"), *reply.output("weights")]


def agrees(found: Sequence[float | str], golden: Sequence[float | str]) -> bool:
    """Return whether an answer equals the golden one, up to rounding."""
    return len(found) == len(golden) and all(
        a == b if isinstance(a, str) or isinstance(b, str) else abs(a - b) <= CLOSE
        for a, b in zip(found, golden, strict=True)
    )


@contextlib.contextmanager
def clients(url: str, count: int, golden: Golden) -> Iterator[Tally]:
    """Run clients, each with a connection, that send text after text while the block runs."""
    tally, stop = Tally(), threading.Event()
    texts = list(next(iter(golden.values())))
    threads = [
        threading.Thread(target=_ask, args=(url, texts, golden, tally, stop, n))
        for n in range(count)
    ]
    for thread in threads:
        thread.start()
    try:
        yield tally
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _ask(
    url: str,
    texts: Sequence[str],
    golden: Golden,
    tally: Tally,
    stop: threading.Event,
    turn: int,
) -> None:
    with Client(url) as client:
        while not stop.is_set():
            text, turn = texts[turn % len(texts)], turn + 1
            sent = time.perf_counter()
            try:
                reply = client.infer([text])
            except (OSError, http.client.HTTPException) as e:
                tally.failed.append(repr(e))
                client.connection.close()  # the next request opens a new one
                continue
            back = time.perf_counter()
            if reply.status != 200:  # noqa: PLR2004
                tally.failed.append(f"{reply.status} {reply.body}")
                continue
            tally.seconds.append(back - sent)
            tally.seen.append((sent, back, reply.generation))
            if not agrees(output_values(reply), golden[reply.generation][text]):
                tally.mixed.append(reply)


def broken_swaps(home: Path, damaged: int) -> Sequence[Callable[[Client, int], Reply]]:
    """Return swaps that must be refused, and damage the generation that one of them asks for.

    Args:
        home: The home that is served.
        damaged: A generation that is not used otherwise; its router loses a byte.
    """
    path = home / "generations" / str(damaged) / "router.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    return (
        lambda client, _: client.swap(ABSENT),
        lambda client, _: client.swap(damaged),
        lambda client, other: client.swap(other, expected=ABSENT),
    )


def load_test(
    client: Client,
    log: Log,
    *,
    good: Sequence[int],
    broken: Sequence[Callable[[Client, int], Reply]],
    swaps: int,
    seconds: float = 0.0,
) -> list[int]:
    """Swap, every third time in a way that must be refused.

    Args:
        client: A client with the token.
        log: The log of completed swaps.
        good: The generations to cycle through.
        broken: The swaps that must be refused, in turn.
        swaps: Total number of swaps.
        seconds: Time over which they are spread; they take longer if the server is slower.

    Returns:
        The statuses of the broken swaps.

    Raises:
        RuntimeError: If a valid swap was refused.
    """
    refused: list[int] = []
    start = time.perf_counter()
    for n in range(swaps):
        target = good[(n - n // 3) % len(good)]
        if n % 3 == 2:  # noqa: PLR2004
            refused.append(broken[n // 3 % len(broken)](client, target).status)
        else:
            began = time.perf_counter()
            reply = client.swap(target)
            if reply.status != 200:  # noqa: PLR2004
                raise RuntimeError(f"generation {target} was refused: {reply.body}")
            log.add(began=began, ended=time.perf_counter(), generation=target)
        time.sleep(max(0.0, start + (n + 1) * seconds / swaps - time.perf_counter()))
    return refused


def distinguishing_texts(host: redhost.Host, numbers: Sequence[int], count: int) -> list[str]:
    """Return texts of the backbone's evaluation rows that the generations answer most differently.

    Raises:
        MissingError: If there are too few to distinguish the generations.
    """
    one, two = (host.load(n) for n in numbers)
    texts = list(dict.fromkeys(row.text for row in one.evaluation))
    apart = []
    for text, a, b in zip(texts, one.answer(texts), two.answer(texts), strict=True):
        apart.append((max(abs(a.weights[c] - b.weights[c]) for c in a.weights), text))
    chosen = [text for distance, text in sorted(apart, reverse=True)[:count] if distance > FAR]
    if len(chosen) < count:
        raise redhost.MissingError(
            f"generations {numbers} answer too much alike", expected=f"{count} texts that tell"
        )
    return chosen


def golden_answers_in(
    host: redhost.Host, texts: Sequence[str]
) -> dict[int, dict[str, list[float | str]]]:
    """Record the answers of a host's current generation, without a server."""
    found: dict[str, list[float | str]] = {}
    for text in texts:
        [answer] = host.predict([text])
        found[text] = [answer.label, answer.probability or 0.0, *answer.weights.values()]
    return {host.composed.generation or 0: found}
