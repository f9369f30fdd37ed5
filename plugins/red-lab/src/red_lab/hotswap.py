"""`redhost lab hotswap`: remove, add back and replace experts, and measure what changes."""

from __future__ import annotations

from pathlib import Path

import click

from red_lab.metrics import write_results
from red_lab.options import out_option

__all__ = ["hotswap"]


@click.command()
@click.option("--router", default="evidence", show_default=True, help="The router's kind.")
@out_option("hotswap")
def hotswap(*, router: str, out: Path) -> None:
    """Remove, add back and replace every shipped expert; report accuracy, seconds, changed bytes.

    Packages are actually disabled, installed and uninstalled, in a separate folder and home; this
    environment is not changed.
    """
    import torch

    from red_lab.hotswap_measure import measure
    from red_lab.hotswap_report import page

    torch.set_num_threads(1)  # bitwise reproducible, and less affected by a busy machine
    click.echo(write_results(measure(router=router), out, page=page))
