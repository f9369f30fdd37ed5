"""`redhost lab robust`: the value of a finite game, with its certificate."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

__all__ = ["robust"]


@click.command()
@click.option(
    "--game",
    required=True,
    metavar="FILE",
    help='{"domains": [[…]], "experts": [[…]]}, rows that sum to 1; - for standard input.',
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def robust(*, game: str, as_json: bool) -> None:
    """Solve a finite game: the gate that is best for the worst mixture of domains."""
    import redhost
    from redhost.robust import solve_json

    try:
        data = sys.stdin.buffer.read() if game == "-" else Path(game).read_bytes()
    except OSError as e:
        raise redhost.UsageError(
            f"{game} cannot be read", expected="a JSON file", found=str(e.strerror)
        ) from e
    told = solve_json(data)
    if as_json:
        click.echo(json.dumps(told, indent=2))
        return
    click.echo(
        f"value {told['value']:.8f} nats, certificate {told['lower']:.8f} … {told['upper']:.8f}"
    )
    click.echo("worst mixture " + ", ".join(f"{x:.4f}" for x in told["lambda"]))
    click.echo(f"{told['iterations']} iterations; --json also prints the gate")
