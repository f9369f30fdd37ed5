"""`redhost lab red`, as a command."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

__all__ = ["red"]


@click.command()
@click.option("--task", type=click.Choice(["addition", "mixed"]), default="addition")
@click.option("--protocol", type=click.Choice(["seed", "held-out"]), default="held-out")
@click.option(
    "--backbone",
    default="tiny",
    show_default=True,
    metavar="SOURCE",
    help="tiny, smollm2, gguf:FILE or hf:NAME.",
)
@click.option("--seeds", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--share", type=click.FloatRange(0, 1, min_open=True), default=1.0, show_default=True)
@click.option("--stratified", is_flag=True, help="Draw every range equally often.")
@click.option("--last-blocks", type=click.IntRange(min=1), default=2, show_default=True)
@click.option("--epochs", type=click.IntRange(min=1), default=8, show_default=True)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("docs/results/red"),
    show_default=True,
)
@click.option(
    "--work",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("build/lab"),
    show_default=True,
)
def red(
    *,
    task: Literal["addition", "mixed"],
    protocol: Literal["seed", "held-out"],
    backbone: str,
    seeds: int,
    share: float,
    stratified: bool,
    last_blocks: int,
    epochs: int,
    out: Path,
    work: Path,
) -> None:
    """Residual experts on arithmetic against every baseline; the same command goes on."""
    from red_lab.red.base import BaseSettings
    from red_lab.red.run import Plan, run

    plan = Plan(
        task=task,
        protocol=protocol,
        backbone=backbone,
        seeds=seeds,
        stratified=stratified,
        base=BaseSettings(last_blocks=last_blocks, epochs=epochs, share=share),
    )
    click.echo(run(plan, out=out, work=work / "red"))
