"""`redhost lab seeds`, as a command."""

from __future__ import annotations

from pathlib import Path

import click

__all__ = ["seeds"]


@click.command()
@click.option(
    "--results",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=Path("docs/results"),
    show_default=True,
    help="Folder of the metrics, to which seeds.md is written.",
)
def seeds(*, results: Path) -> None:
    """Write the table of the four seeds' claims with their status."""
    from red_lab.seeds.page import page
    from red_lab.seeds.table import read_rows

    path = results / "seeds.md"
    path.write_text(page(read_rows(), results), "utf-8")
    click.echo(path)
