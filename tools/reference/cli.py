"""The page on the command line."""

from __future__ import annotations

import importlib
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click

from redhost.cli import cli, main
from redhost.registry import errors
from redhost.registry.errors import RedhostError

from .docstrings import exit_codes, first_line
from .markdown import fence, joined, table

__all__ = ["commands", "page"]

ROOT = Path(__file__).parents[2]

WIDTH = 80

GROUPS = {"redhost.commands": "redhost", "redhost.studies": "redhost lab"}
"""Group of entry points → what is typed before the name of one."""


def page() -> str:
    """Return the page."""
    own, others = list[str](), list[str]()
    for path, command, dist in commands():
        (others if dist else own).append(_section(path, command, dist))
    return joined(
        "The command line",
        "All commands and options, as `--help` shows them. `redhost` without arguments shows the "
        "current state and what to type next.",
        "## Exit codes",
        exit_codes(main),
        "An error is one line on standard error, and its kind decides the code:",
        table(("error", "code", "when"), _errors()),
        _section("redhost", cli, ""),
        *own,
        "## Commands of other packages",
        "These come with code plugins of this project, and are available once the package is "
        "installed. Any package can add a command in the same way, with an entry point in "
        "`redhost.commands`.",
        *others,
    )


def commands() -> Iterator[tuple[str, click.Command, str]]:
    """Yield every command of the project: what to type, the command, and its distribution.

    The distribution is empty for the host's own commands. Commands of other packages are those
    that the project's own plugins declare, independent of what else is installed.
    """
    for name, command in sorted(cli.commands.items()):
        yield f"redhost {name}", command, ""
    for file in sorted((ROOT / "plugins").glob("*/pyproject.toml")):
        project = tomllib.loads(file.read_text("utf-8"))["project"]
        for group, typed in GROUPS.items():
            declared = project.get("entry-points", {}).get(group, {})
            for name, value in sorted(declared.items()):
                module, _, attribute = value.partition(":")
                command = getattr(importlib.import_module(module), attribute)
                yield from _walk(f"{typed} {name}", command, project["name"])


def _walk(path: str, command: click.Command, dist: str) -> Iterator[tuple[str, click.Command, str]]:
    yield path, command, dist
    for name, inner in sorted(getattr(command, "commands", {}).items()):
        yield from _walk(f"{path} {name}", inner, dist)


def _section(path: str, command: click.Command, dist: str) -> str:
    depth = "###" if dist else "##"
    brought = f"From `{dist}`.\n\n" if dist else ""
    return f"{depth} {path}\n\n{brought}{fence(_help(path, command))}"


def _help(path: str, command: click.Command) -> str:
    """Return a command's help; groups list their own commands, whatever is installed."""
    context = click.Context(command, info_name=path, terminal_width=WIDTH, max_content_width=WIDTH)
    context.meta.update({group: {} for group in GROUPS})
    return command.get_help(context)


def _errors() -> Iterator[tuple[str, str, str]]:
    for name in vars(errors):
        kind = getattr(errors, name)
        if isinstance(kind, type) and issubclass(kind, RedhostError):
            yield f"`{name}`", str(kind.exit_code), first_line(kind)
