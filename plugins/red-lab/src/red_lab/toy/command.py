"""`redhost lab toy`. Torch and matplotlib are imported inside the command only."""

from __future__ import annotations

from pathlib import Path

import click

from red_lab.options import out_option, seeds_option

__all__ = ["toy"]


@click.command()
@seeds_option(5)
@out_option("toy")
def toy(*, seeds: int, out: Path) -> None:
    """Measure which toy experts can be mixed, on sums of two."""
    from red_lab.toy.run import run

    click.echo(run(seeds=seeds, out=out))
