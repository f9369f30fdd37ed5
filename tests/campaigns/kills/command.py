"""`make kills`: kill recomposes and servers; does a generation still answer?"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import click
from red_lab.metrics import read_metrics, write_results
from red_lab.study import out_option

__all__ = ["kills"]


@click.command()
@click.option(
    "--count",
    type=click.IntRange(min=1),
    help="Minimum number of kills (500, 160 with --server, or 650 faults with --faults).",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Random seed.",
)
@click.option("--backbone", default="tiny", show_default=True, help="The backbone to compose on.")
@click.option("--server", is_flag=True, help="Kill servers during swaps instead.")
@click.option("--faults", is_flag=True, help="Full disks, flipped bits and bad packages instead.")
@out_option("kills")
def kills(
    *, count: int | None, seed: int, backbone: str, server: bool, faults: bool, out: Path
) -> None:
    """Kill recomposes at every step and at random moments, in a home of their own.

    Each of the three campaigns keeps the results of the others. Exits with 1 if any kill left a
    home that does not answer.
    """
    import torch

    from kills.report import page

    torch.set_num_threads(1)  # processes are forked
    known = read_metrics(out)
    with tempfile.TemporaryDirectory() as folder:
        if server:
            found = _servers(Path(folder), count=count or 160, seed=seed)
            metrics = {**known, "server": found}
        elif faults:
            found = _faults(Path(folder), count=count or 650, seed=seed, backbone=backbone)
            metrics = {**known, "faults": found}
        else:
            found = _recomposes(Path(folder), count=count or 500, seed=seed, backbone=backbone)
            metrics = {**found, **{k: v for k, v in known.items() if k in {"server", "faults"}}}
    click.echo(write_results(metrics, out, page=page))
    if found["bad"]:
        sys.exit(1)


def _recomposes(folder: Path, *, count: int, seed: int, backbone: str) -> dict[str, Any]:
    from kills.run import campaign

    return campaign(folder, count=count, seed=seed, backbone=backbone)


def _faults(folder: Path, *, count: int, seed: int, backbone: str) -> dict[str, Any]:
    from kills.faults import fault_campaign

    return fault_campaign(folder, count=count, seed=seed, backbone=backbone)


def _servers(folder: Path, *, count: int, seed: int) -> dict[str, Any]:
    from kills.server import server_campaign

    return server_campaign(folder, count=count, seed=seed)
