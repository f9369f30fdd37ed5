"""`redhost lab matched`. Torch and matplotlib are imported inside the command only."""

from __future__ import annotations

from pathlib import Path

import click

from red_lab.options import WORK, out_option, seeds_option

__all__ = ["matched"]


@click.command()
@click.option(
    "--task",
    type=click.Choice(["arithmetic", "text", "both"]),
    default="both",
    show_default=True,
    help="The results of the other one are kept.",
)
@seeds_option(3)
@out_option("matched")
@WORK
def matched(*, task: str, seeds: int, out: Path, work: Path) -> None:
    """Compare RED, a dense head and mixtures of equal size."""
    from red_lab.matched.run import run
    from red_lab.matched.tasks import TASKS

    tasks = TASKS if task == "both" else (task,)
    click.echo(run(tasks=tasks, seeds=seeds, out=out, work=work))
