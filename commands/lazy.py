"""Commands of other packages: listed by their distribution's summary, imported when invoked."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from ..registry.package.discover import EntryPointInfo


class PluginGroup(click.Group):
    """A group whose commands may also come from the entry points `redhost.commands`.

    Built-in names take precedence. Help and completion use a stub with the distribution's summary,
    so a package's code runs only when its command is invoked.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return built-in and installed command names, sorted."""
        return sorted({*super().list_commands(ctx), *_installed(ctx)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a built-in command, or a stub that loads the installed one when invoked."""
        command = super().get_command(ctx, cmd_name)
        if command is not None or cmd_name not in _installed(ctx):
            return command
        entry = _installed(ctx)[cmd_name]
        if ctx.resilient_parsing or not _typed(ctx, cmd_name):
            summary = _summary(entry, _installed(ctx))
            return click.Command(cmd_name, short_help=summary, help=summary)
        return _load(entry)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve a command; for an unknown one, suggest those with this prefix, or the closest."""
        ctx.meta["redhost.typed"] = args[0] if args else None
        if args and self.get_command(ctx, args[0]) is None:
            names = self.list_commands(ctx)
            close = [name for name in names if args[0] and name.startswith(args[0])]
            close = close or difflib.get_close_matches(args[0], names, n=1)
            meant = " or ".join(map(repr, close))
            hint = f"Did you mean {meant}?" if close else "All commands: 'redhost --help'."
            raise click.UsageError(f"unknown command {args[0]!r}. {hint}", ctx)
        return super().resolve_command(ctx, args)


def _typed(ctx: click.Context, name: str) -> bool:
    return bool(ctx.meta.get("redhost.typed") == name)


def _installed(ctx: click.Context) -> dict[str, EntryPointInfo]:
    """Return the installed commands by name; entry points are read once per command line."""
    from ..registry.package.discover import plugin_entry_points

    if "redhost.installed" not in ctx.meta:
        entries = plugin_entry_points("redhost.commands")
        ctx.meta["redhost.installed"] = {entry.name: entry for entry in entries}
    installed: dict[str, EntryPointInfo] = ctx.meta["redhost.installed"]
    return installed


def _summary(entry: EntryPointInfo, installed: Mapping[str, EntryPointInfo]) -> str:
    """Return a command's summary for lists: the distribution's own for its first command."""
    first = min(name for name, other in installed.items() if other.dist == entry.dist)
    return entry.summary if entry.name == first else f"Comes with {first!r}; has its own --help."


def _load(entry: EntryPointInfo) -> click.Command:
    from ..registry.errors import PluginError

    module, _, attribute = entry.value.partition(":")
    try:
        command = getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as e:
        raise PluginError(
            f"command {entry.name!r} of {entry.dist} {entry.version} cannot be loaded",
            found=f"{type(e).__name__}: {e}",
            hint=f"Reinstall or uninstall {entry.dist}.",
        ) from e
    if not isinstance(command, click.Command):
        raise PluginError(
            f"command {entry.name!r} of {entry.dist}",
            expected="a click command",
            found=type(command).__name__,
        )
    return command
