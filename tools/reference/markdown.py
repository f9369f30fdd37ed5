"""Small pieces of Markdown that render the same on GitHub and in mkdocs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["fence", "joined", "slug", "table"]

NOTE = "<!-- Written by `make reference` from the code; change it there. -->"


def joined(title: str, *parts: str) -> str:
    """Return a page: its title, a note for editors, and its parts."""
    return "\n\n".join([f"# {title}", NOTE, *(p.strip("\n") for p in parts)]) + "\n"


def fence(text: str, language: str = "text") -> str:
    """Return a text as a block of code."""
    return f"```{language}\n{text.strip()}\n```"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; a cell may hold any text of one line."""
    lines = [head, ["---"] * len(head), *rows]
    escaped = ([cell.replace("|", "\\|") for cell in cells] for cells in lines)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in escaped)


def slug(heading: str) -> str:
    """Return the anchor of a heading of plain words."""
    return heading.lower().replace(" ", "-")
