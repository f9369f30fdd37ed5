"""`redhost lab hotswap`: remove, restore and replace experts, and check what else changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from red_lab.metrics import Metrics, render, write_results
from red_lab.study import out_option

__all__ = ["hotswap", "page"]

LEVELS = ("full", "row", "zero")
"""The levels of a swap, the one that retrains most first."""


@click.command()
@click.option("--router", default="evidence", show_default=True, help="The router's kind.")
@out_option("hotswap")
def hotswap(*, router: str, out: Path) -> None:
    """Remove, add back and replace every shipped expert.

    Measures accuracy, seconds and changed bytes.

    Packages are actually disabled, installed and uninstalled, in a temporary folder and home; the
    installed packages stay unchanged.
    """
    import torch

    from red_lab.hotswap_measure import measure

    torch.set_num_threads(1)  # bitwise reproducible, and robust to other load
    click.echo(write_results(measure(router=router), out, page=page))


def page(metrics: Metrics) -> str:
    """Return the page for metrics of the schema ``red-lab.hotswap/1``."""
    levels = {name: metrics["levels"][name] for name in LEVELS if name in metrics["levels"]}
    events = {name: level["events"] for name, level in levels.items()}
    every = [event for swapped in events.values() for event in swapped]
    alike: dict[tuple[tuple[str, ...], ...], list[str]] = {}
    for name, level in levels.items():
        alike.setdefault(tuple(_accuracies(level)), []).append(name)
    return render(
        "hotswap",
        metrics,
        accuracies=alike,
        kinds=list(dict.fromkeys(event["event"] for event in every)),
        levels=events,
        reordered=any(event["same_answers"] and not event["same_router"] for event in every),
    )


def _accuracies(level: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each expert: before, after each event, and the change of other ranges."""
    start = level["start"]["accuracy"]
    for expert in dict.fromkeys(event["expert"] for event in level["events"]):
        after = [e["accuracy"] for e in level["events"] if e["expert"] == expert]
        others = [100 * (a[name] - start[name]) for a in after for name in a if name != expert]
        cells = (f"{accuracy[expert]:.3f}" for accuracy in (start, *after))
        yield expert, *cells, f"{min(others):+.1f} points", f"{max(others):+.1f} points"
