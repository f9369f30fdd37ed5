"""A page of Markdown: its prose, line by line, and its blocks of code."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

__all__ = ["ARCHIVED", "ROOT", "Block", "Page", "all_pages", "archived_at", "read_page"]

ROOT = Path(__file__).parents[2]

ARCHIVED = re.compile(
    r"^Archived: `redhost lab (?P<study>[a-z-]+)` made this page; its code is in commit "
    r"(?P<commit>[0-9a-f]{8}) of this repository\.",
    re.MULTILINE,
)
"""The line of a page whose study has been removed."""

FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>`{3,})(?P<language>[\w-]*)\s*$")


@dataclass(frozen=True)
class Block:
    """A fenced block of code.

    Attributes:
        page: The page, relative to the root of the project.
        line: The number of its first line.
        language: The word after the opening fence; empty for none.
        text: Its lines, without the indent of the fence.
    """

    page: str
    line: int
    language: str
    text: str


@dataclass(frozen=True)
class Page:
    """A page.

    Attributes:
        name: Its path, relative to the root of the project.
        text: Its Markdown.
    """

    name: str
    text: str

    @property
    def path(self) -> Path:
        """Its path."""
        return ROOT / self.name

    @cached_property
    def _parts(self) -> tuple[dict[int, str], tuple[Block, ...]]:
        prose: dict[int, str] = {}
        blocks: list[Block] = []
        opened: re.Match[str] | None = None
        inside: list[str] = []
        for n, line in enumerate(self.text.splitlines(), start=1):
            fence = FENCE.match(line)
            if opened is None and fence is None:
                prose[n] = line
            elif opened is None:
                opened, inside = fence, []
            elif fence and len(fence["ticks"]) >= len(opened["ticks"]) and not fence["language"]:
                text = "".join(f"{x}\n" for x in inside)
                blocks.append(Block(self.name, n - len(inside), opened["language"], text))
                opened = None
            else:
                inside.append(line.removeprefix(opened["indent"]))
        return prose, tuple(blocks)

    @property
    def prose(self) -> dict[int, str]:
        """The lines outside blocks, by number."""
        return self._parts[0]

    def blocks(self, language: str) -> tuple[Block, ...]:
        """Return the blocks of a language, in order."""
        return tuple(b for b in self._parts[1] if b.language == language)


def read_page(name: str) -> Page:
    """Read a page by its path from the root of the project."""
    return Page(name, (ROOT / name).read_text("utf-8"))


def archived_at(folder: Path) -> str:
    """Return the commit that an archived folder of results names; empty if it is kept up."""
    page = folder / "README.md"
    line = ARCHIVED.search(page.read_text("utf-8")) if page.exists() else None
    return line["commit"] if line else ""


def all_pages() -> tuple[Page, ...]:
    """Return README, change log, and every page below docs."""
    below = sorted(p.relative_to(ROOT).as_posix() for p in (ROOT / "docs").rglob("*.md"))
    return tuple(map(read_page, ["README.md", "CHANGELOG.md", *below]))
