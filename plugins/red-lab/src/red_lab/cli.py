"""`redhost lab …`: the experiments as commands. Torch is imported inside commands only."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from red_lab.bench.command import bench
from red_lab.cost import cost
from red_lab.hotswap import hotswap
from red_lab.matched.study import matched
from red_lab.readme import refresh_here
from red_lab.red.command import red
from red_lab.robust.study import robust
from red_lab.seeds import seeds
from red_lab.shrink import shrink
from red_lab.study import WORK, out_option, seeds_option
from red_lab.text.study import text
from redhost.commands.lazy import PluginGroup

__all__ = ["StudyGroup", "build", "generative", "lab", "results", "toy"]


class StudyGroup(PluginGroup):
    """The lab's own commands, and studies of other packages."""

    entry_points = "redhost.studies"


@click.group(cls=StudyGroup)
def lab() -> None:
    """Build the tiny backbone and its experts; reproduce the results."""


@lab.command()
@click.option(
    "--split",
    "number",
    type=click.IntRange(0, 4),
    default=0,
    show_default=True,
    help="Number of the split: which pairs are held out.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Random seed.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Folder for the project folders, e.g. plugins.",
)
@WORK
def build(*, number: int, seed: int, out: Path, work: Path) -> None:
    """Make the tiny backbone of a split and train its five experts.

    `redhost lab build --out plugins` makes the shipped packages.
    """
    from red_lab.base import build_all

    for folder in build_all(number, seed=seed, out=out, work=work / f"split{number}"):
        click.echo(str(folder))


@lab.command()
@click.option(
    "--splits", type=click.IntRange(1, 5), default=5, show_default=True, help="Number of splits."
)
@out_option("tiny-ranges")
@WORK
def results(*, splits: int, out: Path, work: Path) -> None:
    """Measure the shipped set-up over splits, one backbone each."""
    from red_lab.results import run

    click.echo(run(splits=splits, out=out, work=work))
    refresh_here()


@lab.command()
@click.option(
    "--backbone",
    type=click.Choice(["tiny", "smollm2"]),
    default="tiny",
    show_default=True,
    help="A tiny model that is pretrained on general text, or SmolLM2-135M.",
)
@seeds_option(3)
@out_option("generative")
@WORK
def generative(*, backbone: str, seeds: int, out: Path, work: Path) -> None:
    """Compare routers and monoliths of a causal language model."""
    from red_lab.generative.study import run

    say = partial(click.echo, err=True)
    click.echo(run(source=backbone, seeds=seeds, out=out, work=work, say=say))


@lab.command()
@seeds_option(5)
@out_option("toy")
def toy(*, seeds: int, out: Path) -> None:
    """Measure which toy experts can be mixed, on sums of two."""
    from red_lab.toy.report import run

    click.echo(run(seeds=seeds, out=out))


for command in (
    bench,
    cost,
    hotswap,
    matched,
    red,
    robust,
    seeds,
    shrink,
    text,
):
    lab.add_command(command)
