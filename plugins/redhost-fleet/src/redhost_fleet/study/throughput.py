"""Throughput of replicas on one machine, each with one thread: processes, or Ray nodes."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from redhost_serve.client import Client
from redhost_serve.process import compose_home

import redhost
from redhost_fleet.fleet import Fleet
from redhost_fleet.study.replicas import fleet_of, is_ready

__all__ = ["measure", "measure_ray"]

CLIENTS = 16
OBJECTS = 150 * 2**20
"""Bytes of each Ray node's object store; Ray refuses less than some 80 MiB."""
STARTING = 300.0
TEXTS = [f"What is {a} plus {b}?" for a in range(21, 37) for b in (12, 23)]


def measure(folder: Path, *, replicas: Sequence[int], seconds: float) -> dict[str, Any]:
    """Count the answers that clients get, for each number of replicas in turn.

    Args:
        folder: The folder of the homes and the store.
        replicas: The numbers of replicas.
        seconds: Duration of each measurement.
    """
    store = str(folder / "store")
    host = compose_home(folder / "author")
    fleet = Fleet(store)
    fleet.push(host.generations, 1)
    fleet.promote(1)
    rates = []
    for count in replicas:
        with fleet_of(count, folder / f"of{count}", store) as running:
            urls = [replica.url or "" for replica in running]
            rates.append({"replicas": count, "answers_a_second": _rate(urls, seconds)})
    return {"clients": CLIENTS, "seconds": seconds, "rows": rates}


def measure_ray(folder: Path, *, nodes: Sequence[int], seconds: float) -> dict[str, Any]:
    """Count the answers that clients get through Ray Serve, one replica on each cluster node.

    Args:
        folder: The folder of the homes and the store.
        nodes: The numbers of nodes.
        seconds: Duration of each measurement.
    """
    fleet, host = Fleet(str(folder / "store")), compose_home(folder / "author")
    fleet.push(host.generations, 1)
    fleet.promote(1)
    rates = []
    for count in nodes:
        with _deployed(count, folder / f"of{count}", fleet.storage.url) as url:
            rates.append({"nodes": count, "answers_a_second": _rate([url], seconds)})
    return {"clients": CLIENTS, "seconds": seconds, "rows": rates}


@contextlib.contextmanager
def _deployed(nodes: int, homes: Path, store: str) -> Iterator[str]:
    """Run ``redhost deploy`` on a cluster of so many nodes, all processes of this machine."""
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 1, "object_store_memory": OBJECTS}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    for _ in range(nodes - 1):
        cluster.add_node(**head)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ("--replicas", str(nodes), "--cpus", "0.9", "--port", str(port), "--home", str(homes))
    command = redhost.plugins.python_command("-m", "redhost", "deploy", store, *options)
    environment = {**os.environ, "REDHOST_RAY_ADDRESS": str(cluster.address)}
    try:
        with subprocess.Popen(command, env=environment) as child:  # noqa: S603  (our own command)
            try:
                url = f"http://127.0.0.1:{port}"
                _until(lambda: is_ready(url) and len(Fleet(store).reports()) >= nodes)
                yield url
            finally:
                child.send_signal(signal.SIGTERM)
                child.wait(120)
    finally:
        cluster.shutdown()


def _until(true: Callable[[], bool]) -> None:
    """Wait until a condition holds.

    Raises:
        MissingError: If it does not hold within some minutes.
    """
    deadline = time.monotonic() + STARTING
    while not true():
        if time.monotonic() > deadline:
            raise redhost.MissingError("replicas on Ray Serve do not answer")
        time.sleep(0.2)


def _rate(urls: Sequence[str], seconds: float) -> float:
    stop, counts = threading.Event(), [0] * CLIENTS

    def ask(n: int) -> None:
        with Client(urls[n % len(urls)]) as client:
            while not stop.is_set():
                client.infer([TEXTS[counts[n] % len(TEXTS)]])
                counts[n] += 1

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(CLIENTS)]
    for thread in threads:
        thread.start()
    time.sleep(2)  # warm-up
    before, start = sum(counts), time.monotonic()
    time.sleep(seconds)
    done, took = sum(counts) - before, time.monotonic() - start
    stop.set()
    for thread in threads:
        thread.join()
    return done / took
