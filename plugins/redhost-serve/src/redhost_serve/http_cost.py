"""The cost of HTTP for one query, and the gain from micro-batching for many.

Machines are noisy: both sides of a comparison are measured in turn, and ratios are of medians.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

import redhost
from redhost_serve.client import Client
from redhost_serve.load_test import clients, golden_answers_in
from redhost_serve.process import compose_home, serving

__all__ = ["measure"]

ROUNDS = 3
QUERIES = 200
TEXTS = 32


def measure(*, clients: int, seconds: float) -> dict[str, Any]:
    """Measure on the shipped packages.

    Args:
        clients: Number of concurrent clients, for the throughput.
        seconds: Duration of each of three rounds.
    """
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder, "home")
        host = compose_home(home)
        texts = list(dict.fromkeys(row.text for row in host.composed.evaluation))[:TEXTS]
        with serving(home) as batched, serving(home, "--limit", "batch=1") as single:
            query = _latency(host, batched.url, texts)
            rates = _rates(
                host,
                {"batched": batched.url, "one_at_a_time": single.url},
                texts,
                count=clients,
                seconds=seconds,
            )
    return {"query": query, "throughput": {"clients": clients, **rates}}


def _latency(host: redhost.Host, url: str, texts: Sequence[str]) -> dict[str, float]:
    """Return the median seconds of one query, in process and over HTTP, measured in turn."""
    found: dict[str, list[float]] = {"in_process": [], "http": []}
    with Client(url) as client:
        calls: dict[str, Callable[[str], object]] = {
            "in_process": lambda text: host.predict([text]),
            "http": lambda text: client.infer([text]),
        }
        for n in range(QUERIES + 20):
            for name, call in calls.items():
                start = time.perf_counter()
                call(texts[n % len(texts)])
                found[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(values[20:]) for name, values in found.items()}
    return {**medians, "ratio": medians["http"] / medians["in_process"]}


def _rates(
    host: redhost.Host, urls: dict[str, str], texts: Sequence[str], *, count: int, seconds: float
) -> dict[str, float]:
    """Return the median answers per second of each server, measured in turn."""
    golden = golden_answers_in(host, texts)
    found: dict[str, list[float]] = {name: [] for name in urls}
    for _ in range(ROUNDS):
        for name, url in urls.items():
            start = time.perf_counter()
            with clients(url, count, golden) as tally:
                time.sleep(seconds)
            if tally.failed or tally.mixed:
                raise redhost.errors.CompositionError(
                    "the server answered wrongly", found=(tally.failed or ["other numbers"])[0]
                )
            found[name].append(len(tally.seconds) / (time.perf_counter() - start))
    medians = {name: statistics.median(rates) for name, rates in found.items()}
    return {**medians, "ratio": medians["batched"] / medians["one_at_a_time"]}
