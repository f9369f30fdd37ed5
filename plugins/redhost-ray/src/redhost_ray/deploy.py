"""Replicas on Ray Serve: each follows a fleet's store; Ray places them, restarts them, and scales.

Every replica has every expert, so any replica can answer any request and no scheduling of experts
is needed. A new replica receives no requests before a generation is loaded and has answered.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import redhost
from redhost_ray.cluster import joined

__all__ = ["DeployOptions", "Replica", "run_replicas"]

STARTING = 600.0
"""Seconds in which a replica has to serve a generation."""


@dataclass(frozen=True, kw_only=True)
class DeployOptions:
    """Options of a deployment.

    Attributes:
        store: The store to follow.
        replicas: Number of replicas; ignored with `autoscaling`.
        autoscaling: Ray Serve's own settings, e.g. ``{"min_replicas": 1, "max_replicas": 8}``.
        home: The folder for the replicas' homes on each machine.
        host: Address that Ray's proxies listen on.
        port: Their port.
        hosts: Accepted Host names, in addition to loopback and the address.
        cpus: CPUs of each replica.
    """

    store: str
    replicas: int = 1
    autoscaling: Mapping[str, Any] | None = None
    home: Path = Path(".redhost/replicas")
    host: str = "127.0.0.1"
    port: int = 8080
    hosts: tuple[str, ...] = ()
    cpus: float = 1.0


class Replica:
    """A server of one replica, as Ray Serve runs it.

    Args:
        store: The store to follow.
        home: The folder for the homes of a machine's replicas; a restarted one reuses its own.
        hosts: Accepted Host names.

    Raises:
        MissingError: If no generation is served in time; Ray retries.
    """

    def __init__(self, store: str, home: str, hosts: tuple[str, ...]) -> None:
        import torch
        from ray import serve
        from redhost_serve.follow import following
        from redhost_serve.service import Options, Service

        torch.set_num_threads(1)
        context = serve.get_replica_context()
        name = f"replica-{context.rank.rank}"
        live = redhost.Live.open(Path(home) / name)
        self.service = Service(live, options=Options(hosts=hosts))
        self._following = ExitStack()
        self._following.enter_context(following(self.service, store, where=f"ray-serve/{name}"))
        deadline = time.monotonic() + STARTING
        while not self.service.ready:
            if time.monotonic() > deadline:
                raise redhost.MissingError(f"{store} has nothing in production")
            time.sleep(0.1)

    def __serve_build_asgi_app__(self) -> Any:
        """Return the application; Ray Serve calls this once."""
        from redhost_serve.app import create_app

        return create_app(self.service)

    async def check_health(self) -> None:
        """Check for Ray Serve that a generation is served.

        Raises:
            MissingError: If none is; Ray then starts another replica.
        """
        if not self.service.ready:
            raise redhost.MissingError("no generation is served")

    async def __del__(self) -> None:
        """Stop following; Ray Serve waits for requests in progress first."""
        await asyncio.to_thread(self._following.close)


def run_replicas(options: DeployOptions, *, until: Any = None) -> None:
    """Run replicas until a signal stops them.

    Args:
        options: The options of the deployment.
        until: Called to wait for the end, in place of a signal.

    Raises:
        MissingError: If Ray Serve or redhost-serve is not installed, or no cluster can be joined.
    """
    serve = _serve()
    from redhost_serve.service import Options

    workers = max(2, options.replicas + 1)  # one for Ray Serve itself
    # Ray gives up on its proxy after five seconds, which a busy machine takes to start a process.
    os.environ.setdefault("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "60")
    with joined(workers):
        serve.start(http_options={"host": options.host, "port": options.port})
        scale: dict[str, Any] = (
            {"num_replicas": options.replicas}
            if options.autoscaling is None
            else {"autoscaling_config": dict(options.autoscaling)}
        )
        deployment = serve.deployment(
            serve.ingress()(Replica),
            name="redhost",
            ray_actor_options={"num_cpus": options.cpus},
            health_check_period_s=2,
            graceful_shutdown_timeout_s=30,
            # Our server queues and batches: at Ray's limit of five, a sixth client would have to
            # wait for Ray's next poll.
            max_ongoing_requests=Options().queue,
            **scale,
        )
        try:
            home = str(options.home.absolute())
            application = deployment.bind(options.store, home, options.hosts)
            serve.run(application, name="redhost", route_prefix="/")
            (until or _wait_for_signal)()
        finally:
            serve.shutdown()


def _serve() -> Any:
    expected, hint = "Ray Serve, redhost-serve and redhost-fleet", "redhost-ray[serve]"
    missing = [n for n in ("redhost_serve", "redhost_fleet") if importlib.util.find_spec(n) is None]
    try:
        from ray import serve
    except ImportError as e:
        missing.append(str(e))
    if missing:
        raise redhost.MissingError(
            "cannot deploy replicas",
            expected=expected,
            found=f"not all of them ({', '.join(missing)})",
            hint=f"Run: pip install '{hint}'",
        )
    return serve


def _wait_for_signal() -> None:
    """Wait for Ctrl-C or SIGTERM."""
    ended = False

    def end(_: int, __: FrameType | None) -> None:
        nonlocal ended
        ended = True

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    while not ended:
        time.sleep(0.2)
