"""`redhost lab toy`. Torch and matplotlib are imported inside the command only."""

from __future__ import annotations

from pathlib import Path

import click

__all__ = ["toy"]


@click.command()
@click.option("--seeds", type=click.IntRange(min=1), default=5, show_default=True)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("docs/results/toy"),
    show_default=True,
)
def toy(*, seeds: int, out: Path) -> None:
    """Linear, nonlinear and residual experts on adding two numbers: which of them mix."""
    from red_lab.toy.run import run

    click.echo(run(seeds=seeds, out=out))
