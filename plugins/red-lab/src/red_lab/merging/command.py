"""`redhost lab merging`. Torch is imported inside the command only."""

from __future__ import annotations

from pathlib import Path

import click

from red_lab.options import WORK, out_option, seeds_option

__all__ = ["merging"]

SECTIONS = ("ranges", "newswire", "adapters")


@click.command()
@seeds_option(3)
@click.option(
    "--section",
    "names",
    type=click.Choice(SECTIONS),
    multiple=True,
    help="What to measure again; other results on the page are kept (default: all).",
)
@out_option("merging")
@WORK
def merging(*, seeds: int, names: tuple[str, ...], out: Path, work: Path) -> None:
    """Merge separately trained experts into one, average their parameters, or route them."""
    from red_lab.merging.run import run

    click.echo(run(names or SECTIONS, seeds=seeds, out=out, work=work / "merging"))
