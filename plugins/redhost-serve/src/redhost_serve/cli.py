"""`redhost serve` and its two measurements. Everything heavy is imported inside commands."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

__all__ = ["bench", "out_option", "serve", "soak", "storm"]

FOLDER = click.Path(path_type=Path, file_okay=False)
HOST, PORT = "127.0.0.1", 8080
FILE = click.Path(path_type=Path, dir_okay=False)
RESULTS = Path("docs/results")


def out_option(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the option --out, which has a default in a clone alone.

    Args:
        name: The folder of docs/results.
    """

    def chosen(context: click.Context, option: click.Parameter, given: Path | None) -> Path:
        if given is None and not RESULTS.is_dir():
            raise click.MissingParameter(ctx=context, param=option)
        return given or RESULTS / name

    shown = f"docs/results/{name} in a clone"
    return click.option("--out", type=FOLDER, callback=chosen, show_default=shown, help="Where to.")


@click.command()
@click.option(
    "--home", type=FOLDER, envvar="REDHOST_HOME", help="State folder (default: .redhost here)."
)
@click.option("--question", metavar="NAME", help="Serve this named question alone.")
@click.option("--backbone", help="The installed backbone to compose on, with --watch.")
@click.option("--device", help="Where the backbone runs, e.g. cpu or cuda.")
@click.option("--host", default=HOST, show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    default=PORT,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="Port to listen on; 0 for any that is free.",
)
@click.option(
    "--allowed-host",
    "hosts",
    metavar="NAME",
    multiple=True,
    help="A name that clients may ask for, beside localhost and the address; repeat for more.",
)
@click.option(
    "--uds",
    metavar="PATH[:MODE]",
    help="Listen on a Unix socket instead; its owner alone may connect, or as MODE says (660).",
)
@click.option(
    "--root-path", default="", metavar="PREFIX", help="Prefix of all paths behind a proxy."
)
@click.option(
    "--cors",
    "origins",
    metavar="ORIGIN",
    multiple=True,
    help="Origin of web pages that may read answers, or *; never with credentials.",
)
@click.option("--admin-token", type=FILE, help="File with the secret that allows changes.")
@click.option("--watch", is_flag=True, help="Follow what is installed, without a restart.")
@click.option("--follow", metavar="URL", help="Serve what this fleet's store has in production.")
@click.option(
    "--limit",
    "limits",
    metavar="NAME=NUMBER",
    multiple=True,
    help="A limit; repeat for more: queue=256 requests wait, more get 503; batch=64 texts at a"
    " time (1: one request); batch-ms=0 for which a batch waits; body=1048576 bytes;"
    " seconds=10 for it to arrive; grace=5 seconds between SIGTERM and the end of new requests.",
)
def serve(
    *,
    home: Path | None,
    question: str | None,
    backbone: str | None,
    device: str | None,
    host: str,
    port: int,
    hosts: tuple[str, ...],
    uds: str | None,
    root_path: str,
    origins: tuple[str, ...],
    admin_token: Path | None,
    watch: bool,
    follow: str | None,
    limits: tuple[str, ...],
) -> None:
    """Serve the current generation over HTTP; swap it under load.

    Every composed question is a model of its own; --question serves one alone.
    """
    from redhost_serve.run import ServeOptions, run

    run(
        ServeOptions(
            home=home,
            question=question,
            backbone=backbone,
            device=device,
            host=host,
            port=port,
            admin_token=admin_token,
            watch=watch,
            follow=follow,
            limits=limits,
            hosts=hosts,
            origins=origins,
            root_path=root_path,
            uds=uds,
        )
    )


@click.command()
@click.option(
    "--seconds", default=180.0, show_default=True, type=click.FloatRange(min=1), help="How long."
)
@click.option(
    "--swaps", default=1200, show_default=True, type=click.IntRange(min=3), help="How many swaps."
)
@click.option(
    "--clients",
    default=8,
    show_default=True,
    type=click.IntRange(min=1),
    help="How many clients at a time.",
)
@out_option("serve")
def storm(*, seconds: float, swaps: int, clients: int, out: Path) -> None:
    """Swap generations under load, a third of them broken; count the errors."""
    from redhost_serve.load_test_run import measure
    from redhost_serve.report import note

    click.echo(note(out, storm=measure(seconds=seconds, swaps=swaps, clients=clients)))


@click.command()
@click.option(
    "--answers",
    default=1_000_000,
    show_default=True,
    type=click.IntRange(min=6400),
    help="How many texts are answered.",
)
@click.option(
    "--changes",
    default=1000,
    show_default=True,
    type=click.IntRange(min=2),
    help="How often an expert goes or comes back.",
)
@out_option("serve")
def soak(*, answers: int, changes: int, out: Path) -> None:
    """Answer a million texts while experts change; record the server's memory."""
    from redhost_serve.report import note
    from redhost_serve.soak import measure

    with click.progressbar(length=answers, label="soak", file=sys.stderr) as bar:

        def progress(done: int, _: int) -> None:
            bar.update(min(done, answers) - bar.pos)

        click.echo(note(out, soak=measure(answers=answers, changes=changes, progress=progress)))


@click.command()
@click.option(
    "--clients",
    default=32,
    show_default=True,
    type=click.IntRange(min=1),
    help="How many clients at a time.",
)
@click.option(
    "--seconds", default=10.0, show_default=True, type=click.FloatRange(min=1), help="How long."
)
@out_option("serve")
def bench(*, clients: int, seconds: float, out: Path) -> None:
    """Time a query over HTTP against a call in process."""
    from redhost_serve.http_cost import measure
    from redhost_serve.report import note

    click.echo(note(out, bench=measure(clients=clients, seconds=seconds)))
