"""The storm: replicas are killed, the store is slow, gone and half-written, the pointer moves on.

An answer is *mixed* if it differs from the answer of its generation alone. It is *stale* if its
generation had not been production for two seconds during which the store was reachable. A request
is *failed* if it gets no answer although its replica was up. Requests to a killed replica are sent
again to another one, and counted separately.
"""

from __future__ import annotations

import http.client
import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from red_lab.progress import Bar
from redhost_serve.client import Client
from redhost_serve.load_test import (
    Golden,
    agrees,
    distinguishing_texts,
    golden_answers_in,
    output_values,
)
from redhost_serve.process import compose_home

import redhost
from redhost_fleet.fleet import Fleet
from redhost_fleet.study.proxy import Proxy
from redhost_fleet.study.replicas import Replica, fleet_of

__all__ = ["Answers", "measure", "stale"]

GRACE = 2.0
"""Seconds that a replica has to follow the pointer."""
WEATHER = ("fair", "slow", "gone", "fair", "half")
"""The states of the store, in turn."""


@dataclass(eq=False)
class Answers:
    """The clients' record of answers.

    Attributes:
        seen: (sent, received, generation) of every answer.
        failed: Requests without an answer whose replica was up.
        retried: Requests without an answer from a killed replica.
        mixed: Answers that no single generation gives.
    """

    seen: list[tuple[float, float, int]] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    retried: int = 0
    mixed: int = 0


def stale(
    seen: Sequence[tuple[float, float, int]],
    moves: Sequence[tuple[float, float, int]],
    outages: Sequence[tuple[float, float]],
    *,
    grace: float = GRACE,
) -> int:
    """Count answers of generations that were no longer production.

    Args:
        seen: (sent, received, generation) of every answer.
        moves: (begun, done, generation) of every move of the pointer, ascending.
        outages: (begin, end) of the times in which the store was unreachable.
        grace: Seconds that a replica has to follow; an outage restarts the clock at its end.
    """
    ends = [done for _, done, _ in moves[1:]] + [float("inf")]
    spans: dict[int, list[tuple[float, float]]] = {}
    for (begin, _, generation), end in zip(moves, ends, strict=True):
        limit = end + grace
        for down, up in sorted(outages):
            if down < limit and up > end:
                limit = up + grace
        spans.setdefault(generation, []).append((begin, limit))
    return sum(
        not any(begin <= back and sent <= limit for begin, limit in spans.get(generation, ()))
        for sent, back, generation in seen
    )


def measure(
    folder: Path, proxy: Proxy, store: str, *, replicas: int, requests: int, clients: int, seed: int
) -> dict[str, Any]:
    """Run the storm; the store is behind the proxy.

    Args:
        folder: The folder of the homes.
        proxy: The proxy that slows the store down, or cuts it off.
        store: The store's address for replicas.
        replicas: Number of replicas.
        requests: Total number of answers.
        clients: Number of concurrent clients.
        seed: Seed of the random numbers.
    """
    draw, fleet = random.Random(seed), Fleet(store)  # noqa: S311  (no secret)
    golden = _push_three(fleet, folder / "author")
    moves = [_promote(fleet, 1)]
    answers, outages, weather = Answers(), list[tuple[float, float]](), list[str]()
    with fleet_of(replicas, folder, store) as running:
        stop, bar = threading.Event(), Bar("storm", total=requests)
        threads = [
            threading.Thread(target=_ask, args=(running, golden, answers, stop, n))
            for n in range(clients)
        ]
        began = time.monotonic()
        for thread in threads:
            thread.start()
        kills, next_kill = 0, began + 60 / 4
        for turn in itertools.count():
            if len(answers.seen) >= requests:
                break
            weather.append(WEATHER[turn % len(WEATHER)])
            _turn(weather[-1], proxy, fleet, folder, moves, outages, draw)
            if time.monotonic() >= next_kill:
                up = [r for r in running if r.url is not None]
                draw.choice(up).kill()
                kills, next_kill = kills + 1, time.monotonic() + 60
            bar.update(min(len(answers.seen), requests))
        stop.set()
        for thread in threads:
            thread.join()
        seconds = time.monotonic() - began
        lags = sorted(r.seconds for r in fleet.reports() if r.seconds is not None)
    return {
        "replicas": replicas,
        "clients": clients,
        "seconds": seconds,
        "answers": len(answers.seen),
        "failed": len(answers.failed),
        "failures": answers.failed[:5],
        "retried": answers.retried,
        "mixed": answers.mixed,
        "stale": stale(answers.seen, moves, outages),
        "swaps": len(moves) - 1,
        "kills": kills,
        "weather": {kind: weather.count(kind) for kind in dict.fromkeys(WEATHER)},
        "outage_seconds": sum(up - down for down, up in outages),
        "last_swap_seconds": lags,
    }


def _push_three(fleet: Fleet, home: Path) -> Golden:
    """Push three generations; return each one's own answers."""
    host, golden = compose_home(home), dict[int, dict[str, list[float | str]]]()
    texts = distinguishing_texts(host, (1, 2), 16)
    for number in (1, 2, 3):
        host.rollback(number)
        golden |= golden_answers_in(host, texts)
        fleet.push(host.generations, number)
    return golden


def _turn(
    kind: str,
    proxy: Proxy,
    fleet: Fleet,
    folder: Path,
    moves: list[tuple[float, float, int]],
    outages: list[tuple[float, float]],
    draw: random.Random,
) -> None:
    """Keep the store in one state for some seconds, and move the pointer meanwhile if possible."""
    time.sleep(draw.uniform(1.0, 3.0))
    other = draw.choice([n for n in (1, 2, 3) if n != moves[-1][2]])
    if kind == "gone":
        down = time.monotonic()
        proxy.cut = True
        time.sleep(draw.uniform(1.0, 4.0))
        proxy.cut = False
        outages.append((down, time.monotonic()))
        return
    if kind == "half":
        _stopped_push(fleet.storage.url, folder, draw)
    proxy.delay = 0.1 if kind == "slow" else 0.0
    moves.append(_promote(fleet, other))
    time.sleep(3.0 if kind == "slow" else 0.5)
    proxy.delay = 0.0


def _promote(fleet: Fleet, number: int) -> tuple[float, float, int]:
    """Move the pointer; return when the move began and was done, and the generation."""
    begun = time.monotonic()
    fleet.promote(number)
    return begun, time.monotonic(), number


def _stopped_push(store: str, folder: Path, draw: random.Random) -> None:
    """Push from a process that is killed at a random moment."""
    copies = folder / "author"
    command = redhost.plugins.python_command(
        "-m", "redhost", "push", store, "--home", str(copies), "--generation", "3"
    )
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=sys.stderr) as child:  # noqa: S603
        time.sleep(draw.uniform(0.5, 2.0))
        os.kill(child.pid, signal.SIGKILL)


def _ask(
    replicas: Sequence[Replica],
    golden: Golden,
    answers: Answers,
    stop: threading.Event,
    turn: int,
) -> None:
    """Send one text after the other, each to another replica that is up."""
    texts = list(next(iter(golden.values())))
    known: dict[str, Client] = {}
    while not stop.is_set():
        text, turn = texts[turn % len(texts)], turn + 1
        replica = replicas[turn % len(replicas)]
        if (url := replica.url) is None:
            continue
        client = known.setdefault(url, Client(url))
        sent = time.monotonic()
        try:
            reply = client.infer([text])
        except (OSError, http.client.HTTPException) as e:
            client.connection.close()
            time.sleep(0.2)  # the kill is recorded meanwhile
            if replica.url == url and not replica.was_down(sent, time.monotonic()):
                answers.failed.append(repr(e))
            else:
                answers.retried += 1
            continue
        back = time.monotonic()
        if reply.status != 200:  # noqa: PLR2004
            answers.failed.append(f"{reply.status} {reply.body}")
            continue
        answers.seen.append((sent, back, reply.generation))
        expected: Mapping[str, Sequence[float | str]] = golden[reply.generation]
        answers.mixed += not agrees(output_values(reply), expected[text])
