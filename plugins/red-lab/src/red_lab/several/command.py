"""The command `redhost lab several`. Torch is imported only when it runs."""

from __future__ import annotations

from pathlib import Path

import click

from red_lab.options import WORK, out_option, require_scikit_learn, seeds_option
from red_lab.readme import refresh_here
from red_lab.several.corpora import STUDIES

__all__ = ["several"]


@click.command()
@click.argument("studies", nargs=-1, type=click.Choice(list(STUDIES)))
@seeds_option(3)
@click.option("--validation", is_flag=True, help="Judge on training rows set aside.")
@out_option("several")
@WORK
def several(
    *, studies: tuple[str, ...], seeds: int, validation: bool, out: Path, work: Path
) -> None:
    """Compare experts of any number of labels, or of spans, with one trained on pooled rows.

    Measures all studies, unless some are named.
    """
    require_scikit_learn()
    from red_lab.several.run import run

    click.echo(
        run(
            studies or list(STUDIES),
            seeds=range(seeds),
            validation=validation,
            out=out,
            work=work / "several",
        )
    )
    refresh_here()
