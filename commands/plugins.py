"""Commands on plugin code: plugins, trust."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import click

from .common import json_option, print_json
from .tables import table

if TYPE_CHECKING:
    from ..registry.environment.trust import Agreement


@click.command()
@json_option("list[core.plugins.manager.PluginState]")
def plugins(*, as_json: bool) -> None:
    """List installed plugins and whether they are loaded."""
    from ..core.plugins.manager import Plugins

    states = Plugins().states
    if as_json:
        print_json(states)
        return
    if not states:
        click.echo("no plugins are installed")
        return
    table(
        "plugins",
        ("name", "dist", "version", "state", "reason"),
        [(s.name, s.dist, s.version, s.state, s.reason) for s in states],
        whole=("dist",),
    )
    for s in states:
        if s.hint:
            click.echo(f"{s.dist}: {s.hint}")


@click.command()
@click.argument("dist")
@click.option("--revoke", is_flag=True, help="Withdraw the permission.")
def trust(*, dist: str, revoke: bool) -> None:
    """Allow the plugin code of DIST, as it is now, to run.

    Python has no sandbox: a plugin can do whatever you can. The permission is for your user only.
    It ends when the distribution's files change, or with --revoke. Plugins of this project need
    none while they are what this redhost was released with, or lie in the tree that it runs from.
    """
    if revoke:
        _revoke(dist)
        return
    from ..registry.environment.trust import trust as record
    from ..registry.errors import UnknownNameError, short
    from ..registry.package.discover import canonical, plugin_entry_points

    plugins = {canonical(e.dist): e.dist for e in plugin_entry_points("redhost.plugins")}
    if canonical(dist) not in plugins:
        raise UnknownNameError("plugin distribution", dist, plugins.values())
    click.echo(f"{dist} is trusted as {short(record(plugins[canonical(dist)]))}")


def _revoke(dist: str) -> None:
    """Withdraw a permission; the distribution may already be uninstalled."""
    from ..registry.environment.trust import distrust, trusted
    from ..registry.errors import UnknownNameError
    from ..registry.package.discover import canonical

    recorded = trusted()
    if canonical(dist) in recorded:
        distrust(dist)
    still = _agreement(dist)
    if still is not None:
        click.echo(f"{dist} is still trusted: {still.reason}. Uninstall it to end that.")
    elif canonical(dist) in recorded:
        click.echo(f"{dist} is not trusted any more")
    else:
        raise UnknownNameError("trusted distribution", dist, recorded)


def _agreement(dist: str) -> Agreement | None:
    """Return why a plugin may run; None for one that is gone or damaged, which nothing imports."""
    from ..registry.environment.trust import agreed, find
    from ..registry.errors import RedhostError

    try:
        return agreed(find(dist))
    except RedhostError:
        return None


def untrusted_maker(form: str) -> str | None:
    """Return the distribution that a form's name begins with, if it is here and not trusted."""
    from ..registry.environment.trust import is_trusted
    from ..registry.errors import RedhostError

    dist, plugins_own, _ = form.partition(":")
    with suppress(RedhostError):  # it is not installed, or damaged: 'redhost plugins' says that
        return dist if plugins_own and not is_trusted(dist) else None
    return None
