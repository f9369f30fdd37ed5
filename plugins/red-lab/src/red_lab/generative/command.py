"""The command `redhost lab generative`."""

from __future__ import annotations

from pathlib import Path

import click

from red_lab.options import WORK, out_option, seeds_option

__all__ = ["generative"]


@click.command()
@click.option(
    "--backbone",
    default="tiny",
    show_default=True,
    metavar="SOURCE",
    help="tiny, smollm2, gguf:FILE or hf:NAME.",
)
@seeds_option(3)
@out_option("generative")
@WORK
def generative(*, backbone: str, seeds: int, out: Path, work: Path) -> None:
    """Experts of a causal language model: routers, monoliths and mixtures, in bits per byte."""
    from red_lab.generative.study.run import run

    path = run(
        source=backbone,
        seeds=seeds,
        out=out,
        work=work,
        say=lambda what: click.echo(what, err=True),
    )
    click.echo(path)
