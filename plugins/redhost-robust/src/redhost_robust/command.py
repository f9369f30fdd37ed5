"""The command `redhost advise`; torch is imported only when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from redhost.commands.common import device_option, home_option, open_host, print_json

if TYPE_CHECKING:
    from redhost_robust.advise import Advice

__all__ = ["advise"]


@click.command()
@home_option
@device_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def advise(*, home: Path | None, device: str | None, as_json: bool) -> None:
    """Report whether the composed domains should be one model or several.

    Computed from the cards' gate rows: how far apart the domains' texts are, the loss of one model
    that is not given the domain, and Theorem 3's bound.
    """
    from redhost_robust.advise import advise as advise_on

    with open_host(home, device=device) as host:
        composed = host.composed
        plugins = host.session.plugins_of(composed)
        found = advise_on(composed, encode=host.encoder(composed), plugins=plugins)
    if as_json:
        print_json(found)
        return
    for line in lines(found):
        click.echo(line)


def lines(found: Advice) -> list[str]:
    """Return the printed lines of the advice."""
    worst = max(found.costs, key=lambda name: found.costs[name])
    mean = sum(found.costs.values()) / len(found.costs)
    share = found.divergence / found.most
    return [
        f"{found.choice}: {found.sentence}.",
        "",
        f"from {sum(found.rows.values())} gate rows of {len(found.rows)} domains, in nats:",
        f"  texts apart         {found.divergence:6.3f}  of {found.most:.3f}, {share:.0%}: "
        "Jensen-Shannon divergence, all domains alike",
        f"  capacity            {found.capacity:6.3f}  the same at the hardest mixture",
        f"  merging costs       {mean:6.3f}  a row on average, {found.costs[worst]:.3f} at worst "
        f"({worst})",
        f"  theorem 3's bound   {found.bound:6.3f}  of the composition's divergence, all domains "
        "alike",
    ]
