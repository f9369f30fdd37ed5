"""The command train-many: train the experts of a plan on an engine's workers."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from redhost.commands.common import (
    backbone_option,
    bar,
    engine_options,
    home_option,
    json_option,
    print_json,
)


@click.command("train-many")
@click.argument("plan", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@backbone_option
@engine_options
@home_option
@json_option("list[redhost_ray.train_many.TrainingOutcome]")
def train_many(
    *,
    plan: Path,
    backbone: str | None,
    engine: str,
    workers: int,
    home: Path | None,
    as_json: bool,
) -> None:
    """Train many experts, those that PLAN lists.

    PLAN has one JSON object per line: {"dir": …, "data": …}, and optionally valid, text_field,
    label_field, epochs and seed, as for train-expert. After Ctrl-C the same command continues;
    finished experts are not trained again.
    """
    from redhost.core.plugins.manager import Plugins
    from redhost_ray.pool import choose_pool
    from redhost_ray.train_many import read_plan_file
    from redhost_ray.train_many import train_many as train
    from redhost_ray.workers import job_cache

    requests = read_plan_file(plan)
    plugins = Plugins()
    pool = choose_pool(plugins, engine=engine, workers=workers)
    with bar("train-many") as progress:
        outcomes = train(
            requests,
            pool=pool,
            plugins=plugins,
            cache=job_cache(home),
            home=home,
            backbone=backbone,
            progress=progress,
        )
    if as_json:
        print_json(outcomes)
    else:
        for outcome in outcomes:
            if outcome.manifest is None:
                click.echo(f"{outcome.dir}: failed: {outcome.error}")
                continue
            training = outcome.manifest.training
            metrics = ", ".join(f"{k} {v:.3f}" for k, v in training.metrics.items())
            click.echo(f"{outcome.dir}: expert {outcome.id!r}, accuracy {metrics}")
    if any(outcome.error for outcome in outcomes):
        sys.exit(1)
