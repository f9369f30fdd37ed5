"""`redhost lab port`. Torch is imported inside the command only."""

from __future__ import annotations

from pathlib import Path

import click

from red_lab.options import WORK, out_option, seeds_option

__all__ = ["port"]


@click.command()
@click.option("--only", "names", metavar="TEXT", multiple=True, help="Pairs whose name has this.")
@seeds_option(1)
@click.option("--validation", is_flag=True, help="Judge on training rows set aside.")
@out_option("port")
@WORK
def port(*, names: tuple[str, ...], seeds: int, validation: bool, out: Path, work: Path) -> None:
    """Carry experts over to other backbones, beside retraining them and beside nothing.

    All pairs, unless some are named; what is measured already is read, not measured again.
    """
    import torch

    from red_lab.port.report import run

    torch.set_num_threads(1)
    click.echo(run(names, seeds=seeds, validation=validation, out=out, work=work / "port"))
