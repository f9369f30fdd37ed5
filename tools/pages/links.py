"""Links, headings and pictures of a page."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .page import Page

__all__ = ["Link", "anchors", "links_of", "slug"]

CODE = re.compile(r"(`+)(?:.+?)\1")
INLINE = re.compile(r"(!?)\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)")
TAG = re.compile(r"<(img|a)\b[^>]*\b(?:src|href)=\"([^\"]+)\"")
HEADING = re.compile(r"^(#{1,6}) +(.*?)(?: +#+)?$")


@dataclass(frozen=True)
class Link:
    """A link on a page.

    Attributes:
        page: The page.
        line: Its line.
        target: The target as written, e.g. ``state.md#what-it-survives``.
        picture: Whether it is an image.
    """

    page: Page
    line: int
    target: str
    picture: bool

    @property
    def is_outside(self) -> bool:
        """Whether it leaves the project."""
        return bool(re.match(r"[a-z][a-z0-9+.-]*:", self.target))

    @property
    def path(self) -> Path:
        """The file it leads to; the page itself if only an anchor is named."""
        file = self.target.partition("#")[0]
        return self.page.path.parent / file if file else self.page.path

    @property
    def anchor(self) -> str:
        """The part after the ``#``; empty for a whole page."""
        return self.target.partition("#")[2]


def links_of(page: Page) -> Iterator[Link]:
    """Yield every link and picture of a page's prose."""
    for n, line in page.prose.items():
        bare = CODE.sub(lambda m: "`" * len(m[0]), line)
        for mark, target in INLINE.findall(bare):
            yield Link(page, n, target, picture=bool(mark))
        for tag, target in TAG.findall(bare):
            yield Link(page, n, target, picture=tag == "img")


def anchors(page: Page) -> frozenset[str]:
    """Return the anchors of a page's headings; the second with the same name gets ``-1``."""
    seen: Counter[str] = Counter()
    found = []
    for line in page.prose.values():
        if heading := HEADING.match(line):
            name = slug(heading[2])
            found.append(f"{name}-{seen[name]}" if seen[name] else name)
            seen[name] += 1
    return frozenset(found)


def slug(heading: str) -> str:
    """Return a heading's anchor as on GitHub: no signs, lower case, a dash for each space."""
    words = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
    return re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
