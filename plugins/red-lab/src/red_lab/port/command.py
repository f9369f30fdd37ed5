"""The command `redhost lab port`. Torch is imported only when it runs."""

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
    """Port experts to other backbones; compare with retraining them and with no expert.

    Measures all pairs, unless some are named; finished measurements are not repeated.
    """
    import torch

    from red_lab.port.report import run

    torch.set_num_threads(1)
    click.echo(run(names, seeds=seeds, validation=validation, out=out, work=work / "port"))
