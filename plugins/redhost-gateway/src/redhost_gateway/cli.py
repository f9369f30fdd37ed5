"""`redhost gateway` and its measurement. Everything heavy is imported inside commands."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from redhost_serve.cli import out_option

from redhost.commands.common import composition_options, device_option

__all__ = ["gateway", "storm"]

FOLDER = click.Path(path_type=Path, file_okay=False)
FILE = click.Path(path_type=Path, dir_okay=False)


@click.command()
@composition_options
@device_option
@click.option(
    "--upstream",
    "urls",
    metavar="URL",
    multiple=True,
    help="A server with OpenAI's API; repeat for more.",
)
@click.option(
    "--model",
    "models",
    metavar="ID=NAME",
    multiple=True,
    help="The name that an expert, or backbone, has there, if it is not its id; repeat for more.",
)
@click.option(
    "--loads",
    type=click.Choice(["none", "vllm", "sglang", "llama.cpp"]),
    default="none",
    show_default=True,
    help="How adapters come to the upstreams: they have them; the gateway loads them; they have"
    " them, and each request has their scales.",
)
@click.option("--config", type=FILE, help="A file of TOML with upstreams that differ in these.")
@click.option(
    "--adapters", type=FOLDER, help="Folder that the upstreams read (default: HOME/gateway)."
)
@click.option(
    "--margin",
    type=click.FloatRange(0, 1),
    default=0.2,
    show_default=True,
    help="By how much weight another expert has to lead to take over a conversation; 0: none.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    default=8080,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="Port to listen on; 0 for any that is free.",
)
@click.option(
    "--allowed-host",
    "hosts",
    metavar="NAME",
    multiple=True,
    help="A name that clients may ask for, beside localhost; repeat for more.",
)
@click.option("--follow", metavar="URL", help="Follow what this fleet's store has in production.")
@click.option(
    "--limit",
    "limits",
    metavar="NAME=NUMBER",
    multiple=True,
    help="A limit; repeat for more: requests=1024 in progress, more get 429; retries=2 before the"
    " first byte; connect=5 and read=600 seconds without one; body=67108864 bytes; check=2"
    " seconds between checks of an upstream; grace=5 seconds between SIGTERM and the end of new"
    " requests.",
)
def gateway(
    *,
    home: Path | None,
    device: str | None,
    urls: tuple[str, ...],
    models: tuple[str, ...],
    loads: str,
    config: Path | None,
    adapters: Path | None,
    margin: float,
    host: str,
    port: int,
    hosts: tuple[str, ...],
    follow: str | None,
    limits: tuple[str, ...],
) -> None:
    """Choose the expert of each request, and let OpenAI-like servers answer it.

    A request whose model is auto gets the expert that the current generation chooses for its
    conversation; all others pass as they are.
    """
    from redhost_gateway.run import GatewayOptions, run
    from redhost_gateway.settings import as_loads, parse_limits, upstreams_of

    run(
        GatewayOptions(
            home=home,
            device=device,
            upstreams=upstreams_of(urls, models=models, loads=as_loads(loads), config=config),
            limits=parse_limits(limits),
            margin=margin,
            adapters=adapters,
            host=host,
            port=port,
            hosts=hosts,
            follow=follow,
        )
    )


@click.command()
@click.option(
    "--requests",
    default=100_000,
    show_default=True,
    type=click.IntRange(min=100),
    help="How many requests.",
)
@click.option(
    "--clients",
    default=256,
    show_default=True,
    type=click.IntRange(min=1),
    help="How many at a time.",
)
@out_option("gateway")
def storm(*, requests: int, clients: int, out: Path) -> None:
    """Send requests through a gateway whose upstreams fail; count the errors."""
    from redhost_gateway.report import note
    from redhost_gateway.storm import measure

    with click.progressbar(length=requests, label="storm", file=sys.stderr) as bar:
        parts = measure(requests=requests, clients=clients, progress=bar.update)
    click.echo(note(out, storm=parts["storm"], overhead=parts["overhead"]))
