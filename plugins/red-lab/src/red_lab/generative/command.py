"""The command `redhost lab generative`."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from red_lab.options import WORK, out_option, seeds_option

__all__ = ["generative"]


@click.command()
@click.option(
    "--backbone",
    type=click.Choice(["tiny", "smollm2"]),
    default="tiny",
    show_default=True,
    help="A tiny model that is pretrained on general text, or SmolLM2-135M.",
)
@seeds_option(3)
@out_option("generative")
@WORK
def generative(*, backbone: str, seeds: int, out: Path, work: Path) -> None:
    """Compare routers and monoliths of a causal language model."""
    from red_lab.generative.study import run

    say = partial(click.echo, err=True)
    click.echo(run(source=backbone, seeds=seeds, out=out, work=work, say=say))
