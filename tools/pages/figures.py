"""Figures in prose: decimals and percentages, and the sources that a page gives for them.

Generated blocks are compared with their results files elsewhere. A figure in prose is searched in
the results that its section shows or links to, as printed there, digit by digit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from .links import CODE, HEADING, INLINE, links_of
from .page import ROOT, Page, read_page

__all__ = ["Figure", "figures_in", "figures_of", "results_near"]

FIGURE = re.compile(
    r"(?<![\w.,:§])(?<![A-Za-z]-)"  # no version, no section, no part of a name
    r"(?:\d[\d,]*\.\d+|\.\d+|\d[\d,]*(?=\s?%))"
    r"(?:\s?%)?"
    r"(?!\.?\w)"
)
START, END = "<!-- results: ", "<!-- /results -->"


@dataclass(frozen=True)
class Figure:
    """A figure in a page's prose.

    Attributes:
        page: The page.
        line: Its line.
        text: As written there, without spaces; ``0.5`` and ``.5`` are the same.
    """

    page: str
    line: int
    text: str


def figures_in(text: str) -> list[str]:
    """Return the figures of a line, code and the targets of links left out."""
    bare = INLINE.sub(lambda m: m[0].rpartition("](")[0], CODE.sub("`", text))
    found = (re.sub(r"\s", "", number) for number in FIGURE.findall(bare))
    return [f"0{number}" if number.startswith(".") else number for number in found]


def figures_of(page: Page) -> Iterator[Figure]:
    """Yield the figures of a page's prose, generated blocks left out."""
    generated = _generated(page)
    for n, line in page.prose.items():
        if n not in generated:
            yield from (Figure(page.name, n, text) for text in figures_in(line))


def results_near(page: Page) -> Mapping[int, frozenset[str]]:
    """Return line → the figures that its section shows in generated blocks or links to."""
    by_line: dict[int, set[str]] = {}
    for n in _generated(page):
        by_line.setdefault(n, set()).update(figures_in(page.prose[n]))
    for link in links_of(page):
        folder = link.path.resolve().parent
        if not link.is_outside and folder.is_relative_to(ROOT / "docs" / "results"):
            by_line.setdefault(link.line, set()).update(_printed(folder / "README.md"))
    near: dict[int, frozenset[str]] = {}
    for section in _sections(page):
        all_of_it = frozenset(x for n in section for x in by_line.get(n, ()))
        near |= dict.fromkeys(section, all_of_it)
    return near


def _generated(page: Page) -> frozenset[int]:
    """Return the lines of generated blocks."""
    found, inside = [], False
    for n, line in page.prose.items():
        inside = (inside or line.startswith(START)) and not line.startswith(END)
        if inside:
            found.append(n)
    return frozenset(found)


def _sections(page: Page) -> list[list[int]]:
    """Return the lines from each heading to the next."""
    sections: list[list[int]] = [[]]
    for n, line in page.prose.items():
        if HEADING.match(line):
            sections.append([])
        sections[-1].append(n)
    return sections


def _printed(file: Path) -> Iterator[str]:
    page = read_page(str(file))
    for line in page.prose.values():
        yield from figures_in(line)
