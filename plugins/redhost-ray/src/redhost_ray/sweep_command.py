"""The command sweep: compare routers on the composed experts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING

import click

from redhost.commands.common import (
    bar,
    composition_options,
    device_option,
    domain_option,
    engine_options,
    field_options,
    json_option,
    open_host,
    print_json,
    read_data,
)
from redhost.commands.tables import table

if TYPE_CHECKING:
    from redhost.core.evaluation.evaluate import Evaluation
    from redhost_ray.sweep import SweepResult


DEFAULT = (
    "evidence",
    "ridge",
    "quadratic",
    "statistics",
    "centroid",
    "linear",
    "mlp",
    "shortlist",
    "hard",
)
"""The kinds that are tried without names, of those that are installed."""


@click.command()
@click.argument("routers", nargs=-1, metavar="[ROUTER]…")
@click.option(
    "--seeds",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Number of seeds that each router is trained from: 0, 1, …",
)
@click.option("--data", metavar="FILE", help="Labelled rows (default: the backbone's own).")
@field_options
@domain_option
@engine_options
@composition_options
@device_option
@json_option("list[redhost_ray.sweep.SweepResult]")
def sweep(
    *,
    routers: Sequence[str],
    seeds: int,
    data: str | None,
    text_field: str,
    label_field: str,
    domain_field: str | None,
    engine: str,
    workers: int,
    home: Path | None,
    device: str | None,
    as_json: bool,
) -> None:
    """Try routers on the composed experts, and compare them.

    Each ROUTER is trained from several seeds and evaluated in memory; nothing is published.
    Without names, the usual kinds are tried.
    """
    fields = {"text_field": text_field, "label_field": label_field}
    rows = read_data(home, data, domain_field=domain_field, **fields)
    host = open_host(home, device=device, engine=engine, workers=workers)
    from redhost.core.model.build import ROUTERS
    from redhost_ray.pool import choose_pool
    from redhost_ray.sweep import router_plugins
    from redhost_ray.sweep import sweep as run
    from redhost_ray.workers import job_cache

    installed = router_plugins(host.plugins).names(ROUTERS)
    with bar("sweep") as progress:
        results = run(
            host.session,
            routers=routers or [kind for kind in DEFAULT if kind in installed],
            pool=choose_pool(host.plugins, engine=engine, workers=workers),
            seeds=range(seeds),
            rows=rows,
            cache=job_cache(home),
            progress=progress,
        )
    if as_json:
        print_json(results)
    else:
        table("routers", ["router", "overall", "macro", "worst", "of oracle"], _lines(results))
        for failed in (s for s in results if s.error):
            click.echo(f"failed: {failed.error}")
    if any(s.error for s in results):
        sys.exit(1)


def _lines(results: Sequence[SweepResult]) -> list[list[str]]:
    """Return a line for each router, best first; for several seeds the mean and the range."""
    by_router: dict[str, list[Evaluation]] = {}
    for s in results:
        if s.evaluation is not None:
            by_router.setdefault(s.router, []).append(s.evaluation)
    lines = [(mean(e.overall for e in seen), _line(r, seen)) for r, seen in by_router.items()]
    return [line for _, line in sorted(lines, key=lambda pair: -pair[0])]


def _line(router: str, seen: Sequence[Evaluation]) -> list[str]:
    overall = [e.overall for e in seen]
    spread = f" ({min(overall):.3f}–{max(overall):.3f})" if len(seen) > 1 else ""
    shares = [e.overall / e.oracle if e.oracle else 1.0 for e in seen if e.oracle is not None]
    means = (mean(e.macro for e in seen), mean(e.worst for e in seen))
    cells = [f"{m:.3f}" for m in means]
    return [
        router,
        f"{mean(overall):.3f}{spread}",
        *cells,
        f"{mean(shares):.1%}" if shares else "n/a",
    ]
