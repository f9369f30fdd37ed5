"""Replicas on Ray Serve, over two nodes: they follow the store, and one that dies comes back."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from redhost_fleet.fleet import Fleet
from redhost_serve.client import Client
from redhost_serve.process import compose_home

pytestmark = pytest.mark.filterwarnings("default")  # Ray's own are not ours to mend

TEXT = "What is 37 plus 12?"


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def until(true: Callable[[], bool], *, seconds: float = 120.0) -> float:
    start = time.monotonic()
    while not true():
        assert time.monotonic() - start < seconds
        time.sleep(0.05)
    return time.monotonic() - start


def generations(url: str, count: int = 20) -> set[int]:
    """Ask over new connections, so that every replica has its turn; 0 for what failed."""
    found = set()
    for _ in range(count):
        try:
            with Client(url) as client:
                reply = client.infer([TEXT])
        except OSError:
            found.add(0)
            continue
        found.add(reply.generation if reply.status == 200 else 0)
    return found


def test_replicas_follow_the_store_and_one_that_is_killed_comes_back(nodes, tmp_path) -> None:
    nodes.add()
    fleet, host = Fleet(str(tmp_path / "store")), compose_home(tmp_path / "author")
    for number in (1, 2):
        fleet.push(host.generations, number)
    fleet.promote(1)
    port = free_port()
    options = ("--replicas", "2", "--cpus", "0.4", "--port", str(port))
    homes = ("--home", str(tmp_path / "replicas"))
    command = [sys.executable, "-m", "redhost", "deploy", fleet.storage.url, *options, *homes]
    with subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}) as child:
        try:
            url = f"http://127.0.0.1:{port}"
            until(lambda: generations(url, 1) == {1})
            until(lambda: len(fleet.reports()) == 2)
            fleet.promote(2)
            assert until(lambda: generations(url) == {2}) < 5
            first = fleet.reports()[0]
            os.kill(first.pid, signal.SIGKILL)
            until(lambda: {r.pid for r in fleet.reports()} - {first.pid, fleet.reports()[1].pid})
            assert generations(url) == {2}
        finally:
            child.send_signal(signal.SIGTERM)
            child.wait(60)
    assert sorted(p.name for p in Path(tmp_path / "replicas").iterdir()) == [
        "replica-0",
        "replica-1",
    ]
