"""Answers a second by replicas of one machine, each with one thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from redhost_fleet.fleet import Fleet
from redhost_serve.client import Client
from redhost_serve.process import compose_home

from red_lab.fleet.replicas import Replica, fleet_of

__all__ = ["measure"]

CLIENTS = 16
TEXTS = [f"What is {a} plus {b}?" for a in range(21, 37) for b in (12, 23)]


def measure(folder: Path, *, replicas: Sequence[int], seconds: float) -> dict[str, Any]:
    """Count the answers of some clients, for as many replicas as are given, one after the other.

    Args:
        folder: Where homes and the store are.
        replicas: How many, by turns.
        seconds: How long each.
    """
    store = str(folder / "store")
    host = compose_home(folder / "author")
    fleet = Fleet(store)
    fleet.push(host.generations, 1)
    fleet.promote(1)
    rates = []
    for count in replicas:
        with fleet_of(count, folder / f"of{count}", store) as running:
            rates.append({"replicas": count, "answers_a_second": _rate(running, seconds)})
    return {"clients": CLIENTS, "seconds": seconds, "rows": rates}


def _rate(replicas: Sequence[Replica], seconds: float) -> float:
    stop, counts = threading.Event(), [0] * CLIENTS

    def ask(n: int) -> None:
        with Client(replicas[n % len(replicas)].url or "") as client:
            while not stop.is_set():
                client.infer([TEXTS[counts[n] % len(TEXTS)]])
                counts[n] += 1

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(CLIENTS)]
    for thread in threads:
        thread.start()
    time.sleep(2)  # warm
    before, start = sum(counts), time.monotonic()
    time.sleep(seconds)
    done, took = sum(counts) - before, time.monotonic() - start
    stop.set()
    for thread in threads:
        thread.join()
    return done / took
