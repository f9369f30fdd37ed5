"""`redhost lab ranks`. Torch is imported inside the command only."""

from __future__ import annotations

from pathlib import Path

import click

from red_lab.metrics import read_metrics, write_results
from red_lab.options import WORK, out_option, seeds_option

__all__ = ["ranks"]


@click.command()
@seeds_option(1)
@click.option(
    "--subject",
    "names",
    type=click.Choice(["ranges", "newswire"]),
    multiple=True,
    help="What to measure again; other results on the page are kept (default: all).",
)
@out_option("ranks")
@WORK
def ranks(*, seeds: int, names: tuple[str, ...], out: Path, work: Path) -> None:
    """Serve one package at several ranks; compare with one package per rank and truncated ones."""
    import torch

    from red_lab.ranks.measure import measure
    from red_lab.ranks.page import draw, page
    from red_lab.ranks.subjects import SUBJECTS

    torch.set_num_threads(1)
    metrics = read_metrics(out) | {"schema": "red-lab.ranks/1"}
    for name in names or SUBJECTS:
        metrics[name] = measure(SUBJECTS[name](work / "ranks"), seeds=seeds, work=work / "ranks")
    click.echo(write_results(metrics, out, page=page, draw=draw))
