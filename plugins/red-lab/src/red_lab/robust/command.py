"""`redhost lab robust`: one finite game with its certificate, or the whole study."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from red_lab.options import WORK, out_option, seeds_option
from red_lab.robust.study import STUDY

__all__ = ["robust"]


@click.command()
@click.option(
    "--game",
    metavar="FILE",
    help='Solve this: {"domains": [[…]], "experts": [[…]]}, rows that sum to 1; - for standard '
    "input.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the game's solution as JSON.")
@click.option(
    "--part",
    "parts",
    type=click.Choice(STUDY.parts),
    multiple=True,
    help="Which parts of the study to run.",
)
@seeds_option(STUDY.seeds)
@out_option(STUDY.name)
@WORK
def robust(
    *,
    game: str | None,
    as_json: bool,
    parts: tuple[str, ...],
    seeds: int,
    out: Path,
    work: Path,
) -> None:
    """Train for the worst mixture of domains; solve finite games."""
    if game is not None:
        _solve(game, as_json=as_json)
        return
    click.echo(STUDY.run(parts=parts or STUDY.parts, seeds=seeds, out=out, work=work))


def _solve(game: str, *, as_json: bool) -> None:
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
        return
    click.echo(
        f"value {solution['value']:.8f} nats, "
        f"certificate {solution['lower']:.8f} … {solution['upper']:.8f}"
    )
    click.echo("worst mixture " + ", ".join(f"{x:.4f}" for x in solution["lambda"]))
    click.echo(f"{solution['iterations']} iterations; --json also prints the gate")
