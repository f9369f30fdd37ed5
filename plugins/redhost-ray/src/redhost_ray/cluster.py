"""A connection to Ray: an existing cluster, or a local one for the duration of a run."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redhost

__all__ = ["ADDRESS", "joined"]

ADDRESS = "REDHOST_RAY_ADDRESS"
"""The environment variable that names a cluster, e.g. ``10.0.0.1:6379`` or ``auto``."""

STORE = 200 * 2**20
"""Bytes of a local Ray's object store; inputs that do not fit spill to disk."""

CONNECT_TIMEOUT = 10.0
"""Seconds in which a cluster has to accept a connection."""


@contextmanager
def joined(workers: int) -> Iterator[Any]:
    """Yield the module `ray`, connected; an existing connection is kept.

    Args:
        workers: CPUs of a local Ray.

    Raises:
        MissingError: If Ray is not installed, or the cluster cannot be reached.
    """
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # no telemetry, read when Ray starts
    ray = _import()
    if ray.is_initialized():
        yield ray
        return
    address = os.environ.get(ADDRESS)
    try:
        _connect(ray, address, workers)
    except (OSError, RuntimeError, ValueError) as e:
        raise redhost.MissingError(
            "engine 'ray' cannot join a cluster",
            expected=f"Ray at {address}" if address else "a Ray on this machine",
            found=str(e).splitlines()[0],
            hint=f"Start one with 'ray start --head', or unset {ADDRESS}." if address else "",
        ) from e
    try:
        yield ray
    finally:
        ray.shutdown()


def _connect(ray: Any, address: str | None, workers: int) -> None:
    logging_options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address:
        _require_reachable(address)
        ray.init(address=address, **logging_options)
        return
    ray.init(
        address="local",  # never a Ray that already runs here
        num_cpus=workers,
        object_store_memory=STORE,
        include_dashboard=False,
        **logging_options,
    )


def _require_reachable(address: str) -> None:
    """Fail early if nothing accepts connections: Ray itself retries for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=CONNECT_TIMEOUT).close()


def _import() -> Any:
    try:
        import ray
    except ImportError as e:
        raise redhost.MissingError(
            "engine 'ray' needs Ray", found=str(e), hint="Run: pip install 'redhost-ray[ray]'"
        ) from e
    return ray
