"""`redhost lab …`: the experiments as commands. Torch is imported inside commands only."""

from __future__ import annotations

from pathlib import Path

import click

from red_lab.bench.command import bench
from red_lab.cost import cost
from red_lab.generative.command import generative
from red_lab.hotswap import hotswap
from red_lab.matched.study import matched
from red_lab.options import WORK, out_option
from red_lab.readme import refresh_here
from red_lab.red.command import red
from red_lab.robust.study import robust
from red_lab.seeds import seeds
from red_lab.shrink import shrink
from red_lab.text.study import text
from red_lab.toy.command import toy
from redhost.commands.lazy import PluginGroup

__all__ = ["StudyGroup", "build", "lab", "results", "share"]


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
    from red_lab.packages import build_all

    for folder in build_all(number, seed=seed, out=out, work=work / f"split{number}"):
        click.echo(str(folder))


@lab.command()
def share() -> None:
    """Show the share of data that the tiny backbone was trained on."""
    from red_lab.packages import installed_share

    click.echo(installed_share())


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


for command in (
    bench,
    cost,
    generative,
    hotswap,
    matched,
    red,
    robust,
    seeds,
    shrink,
    text,
    toy,
):
    lab.add_command(command)
