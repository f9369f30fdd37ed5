"""`redhost lab taps`: experts inside the trunk, compared with experts at its end."""

from __future__ import annotations

from pathlib import Path

import click

from red_lab.metrics import write_results
from red_lab.options import WORK, out_option

__all__ = ["taps"]


@click.command()
@out_option("taps")
@WORK
def taps(*, out: Path, work: Path) -> None:
    """Train every range expert at several places of the tiny backbone, package and compose it."""
    import torch

    from red_lab.taps_measure import measure
    from red_lab.taps_report import page

    torch.set_num_threads(1)  # bitwise reproducible, and robust to other load
    click.echo(write_results(measure(work=work / "taps"), out, page=page, sort_keys=False))
