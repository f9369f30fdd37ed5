"""Run a server until it is stopped: the work of `redhost serve`."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import click
import msgspec
from msgspec import Meta

import redhost
from redhost_serve.admin import read_token
from redhost_serve.app import create_app
from redhost_serve.cli import HOST, PORT
from redhost_serve.follow import following
from redhost_serve.listener import listening
from redhost_serve.recall import Recall
from redhost_serve.server import Server
from redhost_serve.service import Options, Service
from redhost_serve.watch import Watch

__all__ = ["Limits", "ServeOptions", "run"]

AtLeastOne = Annotated[int, Meta(ge=1)]


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    """The numbers that bound what a server does.

    Attributes:
        queue: Maximum number of waiting requests.
        batch: Maximum number of texts in a batch; 1 answers one request at a time.
        batch_ms: Milliseconds for which a batch waits for more requests.
        body: Maximum number of bytes in a body.
        seconds: Seconds in which a client has to send it.
        grace: Seconds between SIGTERM and the end of new requests.
    """

    queue: AtLeastOne = 256
    batch: AtLeastOne = 64
    batch_ms: Annotated[float, Meta(ge=0, le=1000)] = 0.0
    body: AtLeastOne = 2**20
    seconds: Annotated[float, Meta(gt=0, le=600)] = 10.0
    grace: Annotated[float, Meta(ge=0, le=600)] = 5.0

    @classmethod
    def parse(cls, limits: Sequence[str]) -> Limits:
        """Return the limits, given those that differ from the defaults as ``NAME=NUMBER``.

        Raises:
            UsageError: If one is unknown or out of its range.
        """
        given = dict(limit.partition("=")[::2] for limit in limits)
        try:
            return msgspec.convert(given, cls, strict=False)
        except msgspec.ValidationError as e:
            raise redhost.UsageError(
                "a --limit",
                expected=", ".join(f"{f.encode_name}=NUMBER" for f in msgspec.structs.fields(cls)),
                found=f"{', '.join(limits)}: {e}",
            ) from e


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
        limits: Limits, each ``NAME=NUMBER``.
        hosts: Additional accepted Host names.
        origins: Origins of web pages that may read answers.
        root_path: The prefix of all paths behind a proxy.
        uds: The path of a Unix socket to listen on instead of an address.
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
    limits: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    root_path: str = ""
    uds: str | None = None
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
    if options.uds is not None and (options.host, options.port) != (HOST, PORT):
        raise redhost.UsageError(
            "a server listens at one place", expected="--uds, or --host and --port", found="both"
        )
    token = None if options.admin_token is None else read_token(options.admin_token)
    limits = Limits.parse(options.limits)
    place = listening(options.host, options.port, uds=options.uds)
    with place as (listener, where):  # detect a port in use before loading
        service = Service(_open(options), options=_service_options(options, limits))
        server = Server(
            create_app(service, token=token),
            service,
            grace=limits.grace,
            started=lambda: _say(where, service),
        )
        with (
            _watching(service, options),
            following(service, options.follow, where=where),
            _recalling(service),
        ):
            server.run_on(listener)


def _service_options(options: ServeOptions, limits: Limits) -> Options:
    return Options(
        queue=limits.queue,
        batch=limits.batch,
        wait=limits.batch_ms / 1000,
        body=limits.body,
        seconds=limits.seconds,
        hosts=(options.host, *options.hosts),
        origins=options.origins,
        root_path=options.root_path,
    )


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
    service.helpers.append(watch)
    try:
        yield
    finally:
        watch.stop()


@contextlib.contextmanager
def _recalling(service: Service) -> Iterator[None]:
    """Stop serving what is revoked, while the block runs."""
    thread = Recall(service)
    thread.look()  # once before the first request
    thread.start()
    service.helpers.append(thread)
    try:
        yield
    finally:
        thread.stop()


def _say(where: str, service: Service) -> None:
    named = "".join(f", {n} {x.live.generation or 'none'}" for n, x in service.named.items())
    generation = f"{service.live.generation or 'none'}{named}"
    click.echo(f"serving generation {generation} on {where}")
    sys.stdout.flush()


def _log() -> None:
    """Log to stderr, at the level for operators."""
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("redhost").setLevel(logging.INFO)
