"""The commands of a page's console blocks, with the output that the page shows."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from .page import Block, Page

__all__ = ["Command", "commands_of", "shows"]

PROMPT = "$ "


@dataclass(frozen=True)
class Command:
    """One command after a prompt.

    Attributes:
        page: The page.
        line: Its line.
        text: What to type; several lines if a quote or a backslash continues.
        output: The lines that the page shows below it.
    """

    page: str
    line: int
    text: str
    output: tuple[str, ...]


def commands_of(page: Page) -> tuple[Command, ...]:
    """Return the commands of a page in their order."""
    return tuple(c for block in page.blocks("console") for c in _commands(block))


def _commands(block: Block) -> list[Command]:
    found: list[Command] = []
    lines = block.text.splitlines()
    starts = [n for n, line in enumerate(lines) if line.startswith(PROMPT)]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        size = next(n for n in range(1, end - start + 1) if _is_whole(lines[start : start + n]))
        text = "\n".join(lines[start : start + size]).removeprefix(PROMPT)
        output = tuple(x for x in lines[start + size : end] if x.strip())
        found.append(Command(block.page, block.line + start, text, output))
    return found


def _is_whole(lines: list[str]) -> bool:
    """Return whether a shell would run these lines rather than wait for more."""
    if lines[-1].endswith("\\"):
        return False
    try:
        shlex.split("\n".join(lines).removeprefix(PROMPT), comments=True)
    except ValueError:
        return False
    return True


def shows(output: str, expected: tuple[str, ...]) -> bool:
    """Return whether an output has the expected lines in order; ``…`` matches any text."""
    lines = iter(line.rstrip() for line in output.splitlines())
    return all(any(_pattern(want).fullmatch(line) for line in lines) for want in expected)


def _pattern(want: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, want.rstrip().split("…"))))
