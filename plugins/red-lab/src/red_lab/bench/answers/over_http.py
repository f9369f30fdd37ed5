"""The same answers over HTTP: single queries compared with calls in process, and many clients."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import redhost
from red_lab.bench.answers.subject import Subject
from red_lab.bench.rounds import in_turns_over, percentile, spread, times
from red_lab.serving import required

__all__ = ["CLIENTS", "measure_http"]

CLIENTS = (1, 8, 32)
TEXTS = 64


def measure_http(
    subject: Subject, texts: Sequence[str], *, runs: int, seconds: float
) -> dict[str, Any]:
    """Measure a server in a separate process.

    Args:
        subject: The served subject.
        texts: The clients' queries.
        runs: Rounds over the numbers of clients; single queries get many times as many.
        seconds: Duration of the clients' load in a round.

    Raises:
        MissingError: If redhost-serve is not installed.
        CompositionError: If the server answered wrongly.
    """
    with required():
        from redhost_serve.client import Client
        from redhost_serve.load_test import golden_answers_in
        from redhost_serve.process import serving
    host, queries = redhost.Host.open(subject.home), texts[:TEXTS]
    golden = golden_answers_in(host, queries)
    with serving(subject.home) as server, Client(server.url) as client:
        calls: dict[str, Callable[[str], object]] = {
            "in process": lambda text: host.predict([text]),
            "http": lambda text: client.infer([text]),
        }
        bound = _bound(host, texts, rounds=2 * runs)
        single = in_turns_over(calls, [queries[n % len(queries)] for n in range(20 * runs + 1)])
        idle = server.memory()
        load = _loads(server.url, golden, runs=runs, seconds=seconds)
        busy = server.memory()
    return {
        "query": {name: spread(found) for name, found in single.items()},
        "times": times(single["http"], single["in process"]),
        "bound": bound,
        "clients": load,
        "memory": {"idle": idle, "busy": busy},
    }


def _bound(host: redhost.Host, texts: Sequence[str], *, rounds: int) -> dict[str, Any]:
    """Return the speedup per line, in process, of batches as large as the most clients."""
    many = max(CLIENTS)
    works = [texts[n * many : (n + 1) * many] for n in range(rounds + 1)]
    seconds = in_turns_over(
        {
            "one by one": lambda some: [host.predict([text]) for text in some],
            "at once": host.predict,
        },
        works,
    )
    return {
        "rate": spread([many / s for s in seconds["at once"]]),
        "times": times(seconds["one by one"], seconds["at once"]),
    }


def _loads(url: str, golden: Any, *, runs: int, seconds: float) -> dict[str, Any]:
    """Measure each number of clients in turn; the first round warms up and is not counted."""
    rates: dict[int, list[float]] = {count: [] for count in CLIENTS}
    waits: dict[int, list[float]] = {count: [] for count in CLIENTS}
    for n in range(runs + 1):
        for count in CLIENTS:
            rate, waited = _load(url, golden, count=count, seconds=seconds if n else 1.0)
            if n:
                rates[count].append(rate)
                waits[count] += waited
    return {
        str(count): {
            "rate": spread(rates[count]),
            "times": times(rates[count], rates[1]),
            "p50": percentile(waits[count], 50),
            "p99": percentile(waits[count], 99),
            "answers": len(waits[count]),
        }
        for count in CLIENTS
    }


def _load(url: str, golden: Any, *, count: int, seconds: float) -> tuple[float, list[float]]:
    """Return answers per second and the latency of each."""
    from redhost_serve.load_test import clients

    start = time.perf_counter()
    with clients(url, count, golden) as tally:
        time.sleep(seconds)
    took = time.perf_counter() - start
    if tally.failed or tally.mixed:
        raise redhost.errors.CompositionError(
            "the server answered wrongly", found=(tally.failed or ["other numbers"])[0]
        )
    return len(tally.seconds) / took, tally.seconds
