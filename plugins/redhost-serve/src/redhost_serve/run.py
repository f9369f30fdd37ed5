"""Run a server until it is stopped: the work of `redhost serve`."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

import redhost
from redhost_serve.admin import read_token
from redhost_serve.app import create_app
from redhost_serve.follow import following
from redhost_serve.server import Server, bind
from redhost_serve.service import Options, Service
from redhost_serve.watch import Watch

__all__ = ["ServeOptions", "run"]


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """The options of the command line.

    Attributes:
        home: The state folder.
        backbone: The backbone to compose on, with `watch`.
        device: Where the trunk runs.
        host: Address to listen on.
        port: Port; 0 is any that is free.
        admin_token: File with the secret that authorises changes.
        watch: Whether to follow the environment.
        queue: Maximum number of waiting requests.
        batch: Maximum number of texts in a batch.
        wait: Seconds a batch waits for more.
        grace: Seconds between SIGTERM and the end of new requests.
        hosts: Additional accepted Host names.
        follow: The store of a fleet to follow.
        question: The one named question to serve; None for all of the home.
    """

    home: Path | None
    backbone: str | None
    device: str | None
    host: str
    port: int
    admin_token: Path | None
    watch: bool
    queue: int
    batch: int
    wait: float
    grace: float
    hosts: tuple[str, ...] = ()
    follow: str | None = None
    question: str | None = None


def run(options: ServeOptions) -> None:
    """Serve until a signal stops the server."""
    _log()
    if options.watch and options.follow is not None:
        raise redhost.UsageError(
            "a server follows one thing",
            expected="--watch or --follow",
            found="both",
            hint="Watch where people install; follow where their work is served.",
        )
    token = None if options.admin_token is None else read_token(options.admin_token)
    limits = Options(
        queue=options.queue,
        batch=options.batch,
        wait=options.wait,
        hosts=(options.host, *options.hosts),
    )
    with bind(options.host, options.port) as listener:  # detect a port in use before loading
        service = Service(_open(options), options=limits)
        where = _url(options.host, listener.getsockname()[1])
        server = Server(
            create_app(service, token=token),
            service,
            grace=options.grace,
            started=lambda: _say(where, service),
        )
        with (
            _watching(service, options),
            following(service, options.follow, where=where),
            contextlib.suppress(KeyboardInterrupt),  # uvicorn raises Ctrl-C again after shutdown
        ):
            server.run(sockets=[listener])


def _open(options: ServeOptions) -> redhost.Live:
    live = redhost.Live.open(
        options.home,
        question=options.question,
        backbone=options.backbone,
        device=options.device,
    )
    if not options.watch and options.follow is None and not live.host.questions:
        live.host.session.require_current(instead="serve with --watch")
    return live


@contextlib.contextmanager
def _watching(service: Service, options: ServeOptions) -> Iterator[None]:
    """Follow the environment while the block runs, if `watch` is set."""
    if not options.watch:
        yield
        return
    watch = Watch(service, backbone=options.backbone)
    watch.start()
    try:
        yield
    finally:
        watch.stop()


def _url(host: str, port: int) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _say(where: str, service: Service) -> None:
    named = "".join(f", {n} {x.live.generation or 'none'}" for n, x in service.named.items())
    generation = f"{service.live.generation or 'none'}{named}"
    click.echo(f"serving generation {generation} on {where}")
    sys.stdout.flush()


def _log() -> None:
    """Log to stderr, at the level for operators."""
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("redhost").setLevel(logging.INFO)
