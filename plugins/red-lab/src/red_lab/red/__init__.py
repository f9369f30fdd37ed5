"""`redhost lab red`: seed 001, Residual Expert Decomposition, against baselines and fair ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import click

from red_lab.study import WORK, out_option, seeds_option

__all__ = ["red"]


@click.command()
@click.option(
    "--task",
    type=click.Choice(["addition", "mixed"]),
    default="addition",
    show_default=True,
    help="Sums of two numbers, or of several with both signs.",
)
@click.option(
    "--protocol",
    type=click.Choice(["seed", "held-out"]),
    default="held-out",
    show_default=True,
    help="As in the seed, or tested on held-out operands.",
)
@click.option(
    "--backbone",
    default="tiny",
    show_default=True,
    metavar="SOURCE",
    help="tiny, smollm2, gguf:FILE or hf:NAME.",
)
@seeds_option(3)
@click.option(
    "--share",
    type=click.FloatRange(0, 1, min_open=True),
    default=1.0,
    show_default=True,
    help="Share of the questions that the base stage is trained on.",
)
@click.option("--stratified", is_flag=True, help="Draw every range equally often.")
@click.option(
    "--base",
    "recipe",
    type=click.Choice(["seed", "fourier", "fourier-long", "fourier-tiny"]),
    help="The base stage: as in the seed, or made for held-out questions (default: the usual one "
    "for task, protocol and backbone).",
)
@click.option(
    "--last-blocks", type=click.IntRange(min=1), help="Number of blocks that the base stage trains."
)
@click.option("--epochs", type=click.IntRange(min=1), help="Epochs of the base stage.")
@click.option(
    "--precision",
    type=click.Choice(["float32", "bfloat16"]),
    help="Precision of trunk and base (default: the usual one).",
)
@click.option("--device", default="cpu", show_default=True, help="Device of trunk and base.")
@click.option("--ablations", is_flag=True, help="Also vary ranks, recipe and noise.")
@click.option("--shares", is_flag=True, help="Also train bases on 10 % … 100 % of the questions.")
@out_option("red")
@WORK
def red(
    *,
    task: Literal["addition", "mixed"],
    protocol: Literal["seed", "held-out"],
    backbone: str,
    seeds: int,
    share: float,
    stratified: bool,
    recipe: str | None,
    last_blocks: int | None,
    epochs: int | None,
    precision: Literal["float32", "bfloat16"] | None,
    device: str,
    ablations: bool,
    shares: bool,
    out: Path,
    work: Path,
) -> None:
    """Compare residual experts on arithmetic with all baselines."""
    from red_lab.red.base import RECIPES
    from red_lab.red.measure import Plan, usual
    from red_lab.red.run import run

    usual_recipe, usual_precision = usual(backbone, task, protocol)
    recipe = recipe or usual_recipe
    written = RECIPES[recipe]
    base = replace(
        written,
        last_blocks=last_blocks or written.last_blocks,
        epochs=epochs or written.epochs,
        precision=precision or usual_precision,
        share=share,
    )
    plan = Plan(
        task=task,
        protocol=protocol,
        backbone=backbone,
        seeds=seeds,
        stratified=stratified,
        recipe=recipe,
        base=base,
        device=device,
        ablations=ablations,
        shares=shares,
    )
    click.echo(run(plan, out=out, work=work / "red"))
