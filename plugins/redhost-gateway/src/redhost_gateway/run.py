"""Run a gateway until it is stopped: the work of `redhost gateway`."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
from redhost_serve.graceful import GracefulServer
from redhost_serve.listener import bind, listening

import redhost
from redhost_gateway.app import create_app
from redhost_gateway.follow import production_of
from redhost_gateway.gateway import Gateway
from redhost_gateway.settings import Limits, UpstreamSettings

__all__ = ["GatewayOptions", "run", "running"]

HEAD_BYTES = 2**16
"""Most bytes of a request's line and headers."""

LOOPBACK = ("localhost", "127.0.0.1")


@dataclass(frozen=True, kw_only=True)
class GatewayOptions:
    """The options of the command line.

    Attributes:
        home: The state folder.
        device: Where the trunk runs.
        upstreams: The servers that answer.
        limits: Limits.
        margin: How far another expert has to lead to take over a conversation.
        adapters: Where adapters are written for upstreams to read.
        host: Address to listen on.
        port: Port; 0 is any that is free.
        hosts: Names that clients may ask for; empty for any unless the address is this machine's.
        follow: The store of a fleet to follow.
    """

    home: Path | None
    device: str | None
    upstreams: tuple[UpstreamSettings, ...]
    limits: Limits
    margin: float
    adapters: Path | None
    host: str
    port: int
    hosts: tuple[str, ...] = ()
    follow: str | None = None


def run(options: GatewayOptions) -> None:
    """Pass requests on until a signal stops the gateway."""
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("redhost").setLevel(logging.INFO)
    with listening(options.host, options.port, uds=None) as (listener, where):
        host, store = redhost.Host.open(options.home, device=options.device), options.follow
        gateway = Gateway(
            host=host,
            settings=options.upstreams,
            limits=options.limits,
            margin=options.margin,
            folder=options.adapters,
            production=None if store is None else production_of(host, store),
        )
        local = options.host in LOOPBACK
        hosts = (*LOOPBACK, *options.hosts) if local or options.hosts else ("*",)

        def say() -> None:
            serving = gateway.serving
            why = f": {gateway.trouble}" if gateway.trouble else ""
            number = "none" if serving is None else serving.number
            click.echo(f"generation {number} chooses on {where}{why}")
            sys.stdout.flush()

        _server(gateway, hosts, started=say).run_on(listener)


def _server(
    gateway: Gateway, hosts: Sequence[str], *, started: Callable[[], None]
) -> GracefulServer:
    """Return the server of a gateway.

    Its parser is h11: the other one, httptools, takes trailers and a second `Host` for headers, has
    no bound for them, and sends chunks to clients of HTTP/1.0.
    """
    return GracefulServer(
        create_app(gateway, hosts=hosts),
        grace=gateway.limits.grace,
        started=started,
        leaving=gateway.drain,
        date_header=False,
        http="h11",
        h11_max_incomplete_event_size=HEAD_BYTES,
    )


@contextlib.contextmanager
def running(gateway: Gateway) -> Iterator[str]:
    """Pass requests on from a free port of this machine while the block runs.

    Args:
        gateway: The state.

    Yields:
        The gateway's address.
    """
    ready, listener = threading.Event(), bind("127.0.0.1", 0)
    server = _server(gateway, ("*",), started=ready.set)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        if not ready.wait(60):
            raise redhost.MissingError("the gateway did not start within a minute")
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listener.close()
