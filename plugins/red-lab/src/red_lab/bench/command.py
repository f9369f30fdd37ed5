"""`redhost lab bench [SECTION…]`; sections import torch and other libraries as needed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

import redhost
from red_lab.bench import SECTIONS, SectionSettings, run
from red_lab.readme import refresh_here
from red_lab.study import WORK

__all__ = ["bench", "server_bench"]

RESULTS = Path("docs/results")


@click.command()
@click.argument("sections", nargs=-1, type=click.Choice((*SECTIONS, "adapters")))
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where the files and their page go (default: docs/results/bench, adapters or serve).",
)
@click.option(
    "--runs",
    type=click.IntRange(min=1),
    default=7,
    show_default=True,
    help="How often each is timed.",
)
@click.option(
    "--texts",
    type=click.IntRange(min=10),
    default=10_000,
    show_default=True,
    help="Texts of the largest call (answers).",
)
@click.option(
    "--backbone",
    "backbones",
    multiple=True,
    type=click.Choice(("minilm", "smollm2")),
    help="Measure this backbone alone (answers).",
)
@click.option("--serve", is_flag=True, help="Time the HTTP server instead (redhost-serve).")
@WORK
def bench(
    *,
    sections: Sequence[str],
    out: Path | None,
    runs: int,
    texts: int,
    backbones: tuple[str, ...],
    serve: bool,
    work: Path,
) -> None:
    """Measure speed and size, section by section.

    Measures all sections, unless some are named.

    The section adapters, which trains 20 of them, has its own page and runs only if it is named.
    With --serve: one query over HTTP against a call in process, and the gain of micro-batching.
    """
    if serve:
        server_bench().main(["--out", str(out or RESULTS / "serve")], standalone_mode=False)
        return
    if "adapters" in sections:
        from red_lab.adapters import run as choose

        click.echo(choose(out=out or RESULTS / "adapters", work=work / "adapters", runs=runs))
        sections = [name for name in sections if name != "adapters"]
        if not sections:
            return
    settings = SectionSettings(runs=runs, work=work / "bench", texts=texts, backbones=backbones)
    for name in sections or SECTIONS:
        click.echo(run(name, out=out or RESULTS / "bench", settings=settings))
    refresh_here()


def server_bench() -> click.Command:
    """Return the command that times the server.

    Raises:
        MissingError: If redhost-serve is not installed.
    """
    try:
        from redhost_serve.cli import bench as command
    except ImportError as e:
        raise redhost.MissingError(
            "the server is not installed", hint="Install it with 'pip install redhost-serve'."
        ) from e
    return command
