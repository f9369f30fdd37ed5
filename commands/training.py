"""The command train-many: experts from a plan, wherever an engine has workers."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from .common import (
    bar,
    engine_options,
    home_option,
    json_option,
    kept_jobs,
    open_crew,
    print_json,
)

__all__ = ["COMMANDS", "train_many"]


@click.command("train-many")
@click.argument("plan", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@engine_options
@home_option
@json_option("list[core.engines.train_many.Trained]")
def train_many(*, plan: Path, engine: str, workers: int, home: Path | None, as_json: bool) -> None:
    """Train many experts, those that PLAN lists.

    PLAN has a JSON object a line: {"dir": …, "data": …}, and where wanted valid, text_field,
    label_field, epochs and seed, as for train-expert. After Ctrl-C the same command goes on: what
    is finished is not trained again.
    """
    from ..core.engines.train_many import read_plan_file
    from ..core.engines.train_many import train_many as train

    trainings = read_plan_file(plan)
    crew, plugins = open_crew(engine, workers)
    with bar("train-many") as progress:
        made = train(trainings, crew=crew, plugins=plugins, kept=kept_jobs(home), progress=progress)
    if as_json:
        print_json(made)
    else:
        for found in made:
            if found.manifest is None:
                click.echo(f"{found.dir}: failed: {found.error}")
                continue
            told = found.manifest.training.metrics
            metrics = ", ".join(f"{k} {v:.3f}" for k, v in told.items())
            click.echo(f"{found.dir}: expert {found.id!r}, accuracy {metrics}")
    if any(found.error for found in made):
        sys.exit(1)


COMMANDS = (train_many,)
