"""The load test as run by the command: a server process, a steady phase, swaps under load."""

from __future__ import annotations

import secrets
import tempfile
import time
from pathlib import Path
from typing import Any

import redhost
from redhost_serve.client import Client
from redhost_serve.load_test import (
    Golden,
    Log,
    Tally,
    broken_swaps,
    clients,
    distinguishing_texts,
    golden_answers,
    load_test,
)
from redhost_serve.process import ServerProcess, compose_home, serving

__all__ = ["measure"]

GOOD = (1, 2)
DAMAGED = 3
TEXTS = 8
SETTLE = 5.0
"""Seconds after which an old generation must be freed, and seconds of warm-up."""


def measure(*, seconds: float, swaps: int, clients: int) -> dict[str, Any]:
    """Run the load test on the shipped packages.

    Args:
        seconds: Duration of the swaps; the steady phase before them takes a third of it.
        swaps: Number of swaps, a third of them broken.
        clients: Number of clients.
    """
    with tempfile.TemporaryDirectory() as folder:
        home, secret = Path(folder, "home"), Path(folder, "token")
        token = secrets.token_hex(32)
        secret.touch(0o600)
        secret.write_text(token, "utf-8")
        texts = distinguishing_texts(compose_home(home), GOOD, TEXTS)
        with serving(home, "--admin-token", str(secret)) as process:
            golden = golden_answers(process.url, GOOD, texts, token=token)
            return _under_load(
                process, home, golden, token=token, seconds=seconds, swaps=swaps, count=clients
            )


def _under_load(
    process: ServerProcess,
    home: Path,
    golden: Golden,
    *,
    token: str,
    seconds: float,
    swaps: int,
    count: int,
) -> dict[str, Any]:
    with clients(process.url, count, golden):
        time.sleep(SETTLE)
    with clients(process.url, count, golden) as steady:
        time.sleep(seconds / 3)
    before, log = process.memory(), Log(GOOD[-1])
    broken = broken_swaps(home, DAMAGED)
    start = time.perf_counter()
    with Client(process.url, token=token) as client, clients(process.url, count, golden) as tally:
        refused = load_test(client, log, good=GOOD, broken=broken, swaps=swaps, seconds=seconds)
    took = time.perf_counter() - start
    after = process.memory()
    time.sleep(SETTLE)
    return {
        "clients": count,
        "seconds": took,
        **_swapped(log, refused),
        **_answered(tally, log),
        "steady": _times(steady),
        "storm": _times(tally),
        "p99_ratio": tally.quantile(0.99) / steady.quantile(0.99),
        "memory": {"before": before, "after": after, "growth": after / before - 1},
        "alive": _alive(process.url),
    }


def _swapped(log: Log, refused: list[int]) -> dict[str, Any]:
    took = sorted(e - b for b, e in zip(log.began[1:], log.ended[1:], strict=True))
    return {
        "swaps": {"done": len(took), "refused": len(refused), "statuses": _counts(refused)},
        "swap_seconds": {"median": took[len(took) // 2], "worst": took[-1]},
    }


def _answered(tally: Tally, log: Log) -> dict[str, Any]:
    return {
        "answers": {
            "all": len(tally.seen),
            "failed": len(tally.failed),
            "mixed": len(tally.mixed),
            "stale": tally.stale(log),
        }
    }


def _times(tally: Tally) -> dict[str, float]:
    return {"p50": tally.quantile(0.5), "p99": tally.quantile(0.99), "requests": len(tally.seconds)}


def _counts(statuses: list[int]) -> dict[str, int]:
    return {str(s): statuses.count(s) for s in sorted(set(statuses))}


def _alive(url: str) -> int:
    """Return how many generations the server has in memory."""
    with Client(url) as client:
        text = client.get("/metrics").body.decode()
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name == "redhost_generations_alive":
            return int(float(value))
    raise redhost.MissingError("the server does not say how many generations are alive")
