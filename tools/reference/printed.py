"""The page on the output of commands with ``--json``."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from operator import itemgetter
from types import GenericAlias
from typing import Any

from red_lab.shrink import shrink_file
from redhost_robust import solve_json

from redhost.cli import main
from redhost.commands.common import JsonOption

from .cli import commands
from .docstrings import exit_codes, returns
from .markdown import joined, table
from .sections import links_to, section
from .shapes import shapes_in, type_text

__all__ = ["LAB", "page", "printed_types"]

LAB = {"robust": ("robust --game FILE", solve_json), "shrink": ("shrink", shrink_file)}
"""Commands of the lab with ``--json``: as typed, and the function that returns their output."""


def page() -> str:
    """Return the page."""
    printed = printed_types()
    every = [t for type_, also in printed.values() for t in (type_, *also.values())]
    shapes = list(dict.fromkeys(s for t in every for s in shapes_in(t)))
    links = links_to(shapes)
    return joined(
        "What commands print with --json",
        "With `--json` a command prints one JSON value on standard output, and nothing else there. "
        "Programs may rely on the keys below; more may be added. Exit codes are the same with and "
        f"without it: {exit_codes(main)} A command that exits with 1 because something it judged "
        "is wrong (`check`, `sweep`, `train-many`) still prints its JSON; an error prints one line "
        "on standard error, and no JSON.",
        table(("command", "prints"), _rows(printed, links)),
        *(section(shape, links, defaults=False) for shape in shapes),
        "## Commands of the lab",
        "Experiments write files, and two print JSON of their own.",
        table(
            ("command", "prints"),
            ((f"`redhost lab {typed}`", returns(made)) for typed, made in LAB.values()),
        ),
    )


def printed_types() -> dict[str, tuple[Any, dict[str, Any]]]:
    """Return command → the type it prints, and those of keys that options add."""
    found = {}
    for path, command, _ in sorted(commands(), key=itemgetter(0)):
        for option in command.params:
            if isinstance(option, JsonOption):
                also = {key: _type(path) for key, path in option.also.items()}
                found[path.removeprefix("redhost ")] = (_type(option.prints), also)
    return found


def _type(path: str) -> Any:
    """Return the type of a path such as ``core.receipt.Receipt`` or ``list[…]``.

    A path begins within redhost, or with the package of one of its plugins.
    """
    if path.startswith("list["):
        return GenericAlias(list, (_type(path.removeprefix("list[").removesuffix("]")),))
    module, _, name = path.rpartition(".")
    whole = module if module.startswith("redhost_") else f"redhost.{module}"
    return getattr(importlib.import_module(whole), name)


def _rows(
    printed: dict[str, tuple[Any, dict[str, Any]]], links: Mapping[type, str]
) -> Iterator[tuple[str, str]]:
    for name, (type_, also) in printed.items():
        more = "".join(
            f"; with `--{key}` also `{key}`: {type_text(t, links)}" for key, t in also.items()
        )
        yield f"`redhost {name}`", type_text(type_, links) + more
