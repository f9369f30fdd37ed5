"""`redhost lab sparse`: compare the cost of a sparse mixture with that of a dense one."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

import click

from red_lab.metrics import write_results
from red_lab.options import out_option

__all__ = ["measure", "page", "sparse"]

EXPERTS = (4, 16, 64)
CHOSEN = (1, 2, 4)
WIDTH, RANK, ROWS, RUNS = 576, 144, 256, 9


@click.command()
@out_option("sparse")
def sparse(*, out: Path) -> None:
    """Count and time top-k of E experts, compared with all of them."""
    click.echo(write_results(measure(runs=RUNS), out, page=page))


def measure(*, runs: int) -> dict[str, Any]:
    """Return multiply-adds and median seconds for every E and k, including the dense mixture.

    Sparse and dense passes alternate, so that other load affects both.
    """
    import torch

    torch.set_num_threads(1)
    rows = []
    for experts in EXPERTS:
        x = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(0))
        calls = {k: _mixture(experts, k) for k in (*CHOSEN, experts) if k <= experts}
        flops = {k: _flops(call, x) for k, call in calls.items()}
        seconds: dict[int, list[float]] = {k: [] for k in calls}
        for _ in range(runs):
            for k, call in calls.items():
                start = perf_counter()
                call(x)
                seconds[k].append(perf_counter() - start)
        middle = {k: statistics.median(s) for k, s in seconds.items()}
        rows += [
            {
                "experts": experts,
                "k": k,
                "flops": flops[k],
                "flops_ratio": flops[k] / flops[experts],
                "seconds": middle[k],
                "seconds_ratio": middle[k] / middle[experts],
            }
            for k in calls
        ]
    return {"schema": "red-lab.sparse/1", "width": WIDTH, "rank": RANK, "batch": ROWS, "rows": rows}


def page(metrics: Mapping[str, Any]) -> str:
    """Return the page for metrics of the schema ``red-lab.sparse/1``."""
    lines = [
        "# Cost of a sparse mixture",
        "",
        "Written by `redhost lab sparse` from `metrics.json`; do not edit.",
        "",
        f"`redhost_mechanisms.SparseMixture` over E experts of width {metrics['width']} and rank "
        f"{metrics['rank']}, of which each row uses k; {metrics['batch']} rows, one thread. k = E "
        "is the dense mixture, and ratios are relative to it. Operations are counted by torch; "
        "seconds are medians of alternating passes.",
        "",
        "| experts | k | operations, relative | seconds, relative | milliseconds |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {r['experts']} | {r['k']} | {r['flops_ratio']:.3f} | {r['seconds_ratio']:.3f} "
        f"| {1000 * r['seconds']:.2f} |"
        for r in metrics["rows"]
    ]
    return "\n".join([*lines, ""])


def _mixture(experts: int, k: int) -> Callable[[Any], Any]:
    import torch
    from redhost_mechanisms import SparseMixture, seeded_linear

    generator = torch.Generator().manual_seed(0)
    gate = seeded_linear(WIDTH, experts, generator=generator)
    parts = [
        torch.nn.Sequential(
            seeded_linear(WIDTH, RANK, generator=generator),
            torch.nn.GELU(),
            seeded_linear(RANK, WIDTH, generator=generator),
        )
        for _ in range(experts)
    ]
    mixture = SparseMixture(gate=gate, experts=parts, k=k).eval().requires_grad_(False)

    def call(x: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            made: torch.Tensor = mixture(x)
        return made

    return call


def _flops(call: Callable[[Any], Any], x: Any) -> int:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        call(x)
    return int(counter.get_total_flops())
