"""Commands on plugin code: plugins, trust."""

from __future__ import annotations

import click

from .common import json_option, print_json
from .tables import table


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
    rows = [(s.name, s.dist, s.version, s.state, s.reason) for s in states]
    table("plugins", ("name", "dist", "version", "state", "reason"), rows, whole=("dist",))
    for s in states:
        if s.hint:
            click.echo(f"{s.dist}: {s.hint}")


@click.command()
@click.argument("dist")
@click.option("--revoke", is_flag=True, help="Withdraw the permission.")
def trust(*, dist: str, revoke: bool) -> None:
    """Allow the plugin code of DIST, as it is now, to run.

    Python has no sandbox: a plugin can do whatever you can. The permission is for your user only.
    It ends when the distribution's files change, or with --revoke.
    """
    if revoke:
        _revoke(dist)
        return
    from ..registry.environment.trust import trust as record
    from ..registry.errors import UnknownNameError, short
    from ..registry.package.discover import canonical, plugin_entry_points

    known = {canonical(e.dist): e.dist for e in plugin_entry_points("redhost.plugins")}
    if canonical(dist) not in known:
        raise UnknownNameError("plugin distribution", dist, known.values())
    click.echo(f"{dist} is trusted as {short(record(known[canonical(dist)]))}")


def _revoke(dist: str) -> None:
    """Withdraw a permission; the distribution may already be uninstalled."""
    from ..registry.environment.trust import distrust, trusted
    from ..registry.errors import UnknownNameError
    from ..registry.package.discover import canonical

    known = trusted()
    if canonical(dist) not in known:
        raise UnknownNameError("trusted distribution", dist, known)
    distrust(dist)
    click.echo(f"{dist} is not trusted any more")


COMMANDS = (plugins, trust)
