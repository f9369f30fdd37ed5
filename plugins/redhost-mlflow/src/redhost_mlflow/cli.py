"""`redhost mlflow`: a generation as a model of MLflow."""

from __future__ import annotations

from pathlib import Path

import click

__all__ = ["mlflow"]

FOLDER = click.Path(path_type=Path, file_okay=False)


@click.group()
def mlflow() -> None:
    """Export a generation to MLflow."""


@mlflow.command()
@click.argument("folder", type=FOLDER)
@click.option("--generation", type=click.IntRange(min=1), help="Which (default: the current one).")
@click.option(
    "--home", type=FOLDER, envvar="REDHOST_HOME", help="State folder (default: .redhost here)."
)
def export(*, folder: Path, generation: int | None, home: Path | None) -> None:
    """Write a generation to FOLDER as a model of MLflow, a pyfunc.

    It contains every byte of the generation. A FOLDER that already has the generation is unchanged.
    """
    import redhost
    from redhost_mlflow.export import export_generation

    done = export_generation(redhost.Host.open(home), folder, generation=generation)
    click.echo(f"{folder}: generation {done.number}" + ("" if done.written else ", as it was"))
