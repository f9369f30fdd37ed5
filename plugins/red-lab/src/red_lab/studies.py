"""Studies of other packages: `redhost lab` lists their entry points, and imports the one typed."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

import click

__all__ = ["GROUP", "StudyGroup"]

GROUP = "redhost.studies"
"""Group of entry points; each names a click command."""


class StudyGroup(click.Group):
    """The lab's own commands, which take precedence, and those of the entry points."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, sorted."""
        return sorted({*super().list_commands(ctx), *_declared(ctx)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command of the lab, or a stub for help that names another package."""
        point = _declared(ctx).get(cmd_name)
        if cmd_name in self.commands or point is None:
            return super().get_command(ctx, cmd_name)
        brought = f"From {point.dist.name}." if point.dist else ""
        return click.Command(cmd_name, help=brought)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve a command; a study of another package is imported."""
        point = _declared(ctx).get(args[0])
        if args[0] in self.commands or point is None:
            return super().resolve_command(ctx, args)
        return args[0], point.load(), args[1:]


def _declared(ctx: click.Context) -> dict[str, EntryPoint]:
    """Return the entry points by name, read once per command line."""
    if GROUP not in ctx.meta:
        ctx.meta[GROUP] = {point.name: point for point in entry_points(group=GROUP)}
    declared: dict[str, EntryPoint] = ctx.meta[GROUP]
    return declared
