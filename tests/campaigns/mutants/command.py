"""`make mutants`: break a good expert in thousands of ways, and check the host."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from red_lab.metrics import write_results
from red_lab.study import out_option

__all__ = ["mutants"]


@click.command()
@click.option(
    "--count",
    type=click.IntRange(min=1),
    default=10_000,
    show_default=True,
    help="Number of mutants.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Random seed.",
)
@out_option("mutants")
def mutants(*, count: int, seed: int, out: Path) -> None:
    """Check mutants of a good expert: each must be refused or load with the same digest.

    Exits with 1 if any crashed, took over two seconds or too much memory.
    """
    import torch

    from mutants.report import page
    from mutants.run import campaign

    torch.set_num_threads(1)  # processes are forked
    metrics = campaign(count=count, seed=seed)
    click.echo(write_results(metrics, out, page=page))
    if metrics["bad"] or not all(row["kept"] for row in metrics["limits"]["files"]):
        sys.exit(1)
