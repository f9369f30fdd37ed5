"""`redhost lab kills`: kill recomposes with signal 9; does a generation still answer?"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import click

from red_lab.options import out_option

__all__ = ["kills"]


@click.command()
@click.option("--count", type=click.IntRange(min=1), default=500, show_default=True)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--backbone", default="tiny", show_default=True, help="The backbone to compose on.")
@out_option("kills")
def kills(*, count: int, seed: int, backbone: str, out: Path) -> None:
    """Kill recomposes at every step and at random moments, in a home of their own.

    Exits with 1 if any kill left a home that does not answer.
    """
    import torch

    from red_lab.kills.report import write_page
    from red_lab.kills.run import campaign

    torch.set_num_threads(1)  # processes are forked
    with tempfile.TemporaryDirectory() as folder:
        metrics = campaign(Path(folder), count=count, seed=seed, backbone=backbone)
    out.mkdir(parents=True, exist_ok=True)
    path = out / "metrics.json"
    path.write_text(json.dumps(metrics, indent=2, sort_keys=True) + "\n", "utf-8")
    write_page(json.loads(path.read_text("utf-8")), out / "README.md")
    click.echo(path)
    if metrics["bad"]:
        sys.exit(1)
