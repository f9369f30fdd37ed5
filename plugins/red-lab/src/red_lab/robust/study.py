"""`redhost lab robust` as a study: finite games, and seeds of uneven traffic."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from red_lab.metrics import Metrics
from red_lab.study import Cell, Study

__all__ = ["STUDY", "robust"]

log = logging.getLogger("red_lab")

EPOCHS = {"arithmetic": 12, "text": 20}
"""Fewer than in `redhost lab matched`: six monoliths are trained in every seed."""


def recipe(task: str) -> Any:
    """Return the training settings of a data set: those of `redhost lab matched`, but shorter."""
    from red_lab.matched.systems import ARITHMETIC, TEXT

    usual = {"arithmetic": ARITHMETIC, "text": TEXT}[task]
    return replace(usual, epochs=EPOCHS[task])


def measure(cell: Cell) -> Any:
    """Return the finite games' results, or those of one seed of a data set."""
    from red_lab.matched.data import load
    from red_lab.robust.finite import finite
    from red_lab.robust.measure import measure as measure_seed
    from red_lab.training import one_thread

    if cell.part == "finite":
        return finite()
    problem = load(cell.part, seed=cell.seed, work=cell.work)
    with one_thread():
        return measure_seed(
            problem,
            recipe=recipe(cell.part),
            seed=cell.seed,
            say=lambda what: log.info("robust, %s, seed %d: %s", cell.part, cell.seed, what),
        )


def summarise(part: str, measured: Sequence[Any]) -> dict[str, Any]:
    """Return the metrics of a part over its seeds; the finite games have none."""
    from red_lab.robust.summary import summarise as summarise_seeds

    if part == "finite":
        games: dict[str, Any] = measured[0]
        return games
    return {"recipe": asdict(recipe(part)), **summarise_seeds(measured)}


def names(metrics: Metrics) -> Mapping[str, object]:
    """Return the finite games and the data sets apart: the page has a section of each kind."""
    uneven = dict(metrics["tasks"])
    finite = uneven.pop("finite", None)
    return {"finite": finite, "uneven": uneven}


def draw(metrics: Metrics, folder: Path) -> None:
    """Write the figures. Matplotlib is imported here only."""
    from red_lab.robust.summary import draw as draw_figures

    draw_figures(metrics, folder)


def solve(*, game: str | None, as_json: bool) -> bool:
    """Solve the game of a file and print its certificate; False if none is given.

    Raises:
        redhost.UsageError: If the file cannot be read.
    """
    if game is None:
        return False
    from redhost_robust import solve_json

    import redhost

    try:
        data = sys.stdin.buffer.read() if game == "-" else Path(game).read_bytes()
    except OSError as e:
        raise redhost.UsageError(
            f"{game} cannot be read", expected="a JSON file", found=str(e.strerror)
        ) from e
    solution = solve_json(data)
    if as_json:
        click.echo(json.dumps(solution, indent=2))
        return True
    click.echo(
        f"value {solution['value']:.8f} nats, "
        f"certificate {solution['lower']:.8f} … {solution['upper']:.8f}"
    )
    click.echo("worst mixture " + ", ".join(f"{x:.4f}" for x in solution["lambda"]))
    click.echo(f"{solution['iterations']} iterations; --json also prints the gate")
    return True


STUDY = Study(
    name="robust",
    help="Train for the worst mixture of domains; solve finite games.",
    schema="red-lab.robust/1",
    parts=("finite", "arithmetic", "text"),
    once=("finite",),
    measure=measure,
    summarise=summarise,
    names=names,
    draw=draw,
    options=(
        click.Option(
            ["--game"],
            metavar="FILE",
            help='Solve this: {"domains": [[…]], "experts": [[…]]}, rows that sum to 1; - for '
            "standard input.",
        ),
        click.Option(
            ["--json", "as_json"], is_flag=True, help="Print the game's solution as JSON."
        ),
    ),
    instead=solve,
)
robust = STUDY.command
