"""`redhost lab cost`: the cost that experts and router add to a backbone of full size.

Weights are random, since parameters, seconds and memory depend on shapes only. Each run adds its
figures to one metrics file, from which the page is written.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from red_lab.metrics import Metrics, read_metrics, render, write_results
from red_lab.study import out_option

__all__ = ["cost", "page", "run"]

CONFIGS = ("qwen3-0.6b", "smollm2-135m", "tiny")


@click.command()
@click.option("--config", type=click.Choice(CONFIGS), required=True, help="The backbone's shape.")
@click.option(
    "--experts", type=click.IntRange(min=1), default=5, show_default=True, help="Number of experts."
)
@click.option("--rank", type=click.IntRange(min=1), help="Rank of each expert (default: D/4).")
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    default="cpu",
    show_default=True,
    help="The device.",
)
@click.option(
    "--queries",
    type=click.IntRange(min=1),
    default=64,
    show_default=True,
    help="Number of texts to answer.",
)
@click.option(
    "--batch", type=click.IntRange(min=1), default=8, show_default=True, help="Texts at a time."
)
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="Number of measurements of each system.",
)
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Threads on a CPU; several slow down small products on a busy machine.",
)
@out_option("cost")
def cost(
    *,
    config: str,
    experts: int,
    rank: int | None,
    device: str,
    queries: int,
    batch: int,
    rounds: int,
    threads: int,
    out: Path,
) -> None:
    """Count parameters, time and memory on a backbone of full size.

    Its weights are random.
    """
    import torch

    from red_lab.cost_measure import Load, measure

    torch.set_num_threads(threads)
    load = Load(
        config=config,
        experts=experts,
        rank=rank,
        device=device,
        queries=queries,
        batch=batch,
        rounds=rounds,
    )
    click.echo(run(measure(load), out=out))


def run(measured: dict[str, Any], *, out: Path) -> Path:
    """Add a run's figures to metrics.json, keep those of other shapes, and write the page.

    Args:
        measured: The result of `measure`.
        out: Folder of the results.
    """
    runs = read_metrics(out).get("runs", {})
    runs[f"{measured['config']} {measured['device']}"] = measured
    return write_results({"schema": "red-lab.cost/1", "runs": runs}, out, page=page)


def page(metrics: Metrics) -> str:
    """Return the page for metrics of the schema ``red-lab.cost/1``."""
    runs = sorted(metrics["runs"].values(), key=lambda r: -r["parameters"]["trunk"])
    # Parameters are the same on every device.
    shapes = {(r["config"], r["experts"], r["rank"]): r for r in runs}
    return render("cost", {}, runs=runs, shapes=[*shapes.values()])
