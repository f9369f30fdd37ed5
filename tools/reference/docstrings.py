"""Parse Google-style docstrings."""

from __future__ import annotations

import inspect
import re

__all__ = ["attributes", "exit_codes", "first_line", "markdown", "prose", "returns"]

SECTION = re.compile(r"^(Args|Attributes|Raises|Returns|Yields):$", re.MULTILINE)
ENTRY = re.compile(r"^    (\w+): (.*(?:\n {8,}.*)*)", re.MULTILINE)


def prose(thing: object) -> str:
    """Return a docstring's text before its first section, as Markdown."""
    text = SECTION.split(_doc(thing), maxsplit=1)[0].strip()
    return markdown(text)


def first_line(thing: object) -> str:
    """Return the first line of a docstring, as Markdown."""
    return markdown(_doc(thing).partition("\n")[0])


def attributes(thing: object) -> dict[str, str]:
    """Return the descriptions of a class's attributes, each as one line of Markdown."""
    _, found, rest = _doc(thing).partition("Attributes:\n")
    section = SECTION.split(rest, maxsplit=1)[0] if found else ""
    return {name: markdown(" ".join(text.split())) for name, text in ENTRY.findall(section)}


def returns(function: object) -> str:
    """Return a docstring's section on the return value, as one line of Markdown."""
    _, _, rest = _doc(function).partition("Returns:\n")
    return markdown(" ".join(SECTION.split(rest, maxsplit=1)[0].split()))


def exit_codes(main: object) -> str:
    """Return the exit codes that the docstring of a main function lists."""
    return first_line(main).partition("exit: ")[2]


def markdown(text: str) -> str:
    """Return a docstring's text with code marked as in Markdown."""
    return text.replace("``", "`")


def _doc(thing: object) -> str:
    return inspect.getdoc(thing) or ""
