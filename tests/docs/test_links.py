"""Links lead somewhere, and pictures show something."""

from __future__ import annotations

import zlib
from pathlib import Path
from xml.etree import ElementTree

import pytest
from matplotlib.image import imread
from pages.links import Link, anchors, links_of, slug
from pages.page import ROOT, Page, all_pages, read_page

PAGES = all_pages()
PICTURES = sorted(p for p in (ROOT / "docs").rglob("*") if p.suffix in {".png", ".svg"})
DRAWN = ("circle", "ellipse", "line", "path", "polygon", "polyline", "rect", "text", "use")


def broken(link: Link) -> str:
    """Return what is wrong with a link; empty if it leads somewhere in the project."""
    if link.is_outside:
        return ""
    if not link.path.exists() or not link.path.resolve().is_relative_to(ROOT):
        return f"{link.page.name}:{link.line}: {link.target}: no such file"
    if link.anchor:
        name = link.path.resolve().relative_to(ROOT).as_posix()
        if link.anchor not in anchors(read_page(name)):
            return f"{link.page.name}:{link.line}: {link.target}: no such heading"
    return ""


def is_blank(picture: Path) -> bool:
    """Tell whether a picture shows nothing.

    Raises:
        Exception: If it cannot be decoded.
    """
    if picture.suffix == ".png":
        return bool(imread(picture).std() == 0)
    root = ElementTree.fromstring(picture.read_text("utf-8"))
    drawn = [e for e in root.iter() if e.tag.rpartition("}")[2] in DRAWN]
    return len({ElementTree.tostring(e) for e in drawn}) < 3


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Page) -> None:
    assert not [reported for reported in map(broken, links_of(page)) if reported]


@pytest.mark.parametrize("picture", PICTURES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_every_picture_shows_something(picture: Path) -> None:
    assert not is_blank(picture)


def test_pictures_of_pages_are_pictures() -> None:
    shown = [link for page in PAGES for link in links_of(page) if link.picture]
    assert shown and all(link.is_outside or link.path.resolve() in PICTURES for link in shown)


def test_a_broken_link_or_anchor_is_noticed() -> None:
    text = "# A heading\n[a](state.md) [b](gone.md) [c](#a-heading) [d](state.md#gone) `[e](f)`\n"
    links = list(links_of(Page("docs/x.md", text)))
    reported = [bool(broken(link)) for link in links if link.target != "#a-heading"]
    assert [link.target for link in links] == ["state.md", "gone.md", "#a-heading", "state.md#gone"]
    assert reported == [False, True, True]


@pytest.mark.parametrize(
    ("heading", "anchor"),
    [
        ("Two commands", "two-commands"),
        ("`redhost generate`", "redhost-generate"),
        ("What is checked, and when?", "what-is-checked-and-when"),
        ("a & b", "a--b"),
        ("redhost_register_norms", "redhost_register_norms"),
        ("[Linked](x.md) 2", "linked-2"),
    ],
)
def test_anchors_are_those_of_github(heading: str, anchor: str) -> None:
    assert slug(heading) == anchor


def test_a_heading_that_stands_twice_has_two_anchors() -> None:
    assert anchors(Page("x.md", "# A\n## B\n```\n# C\n```\n## B\n")) == {"a", "b", "b-1"}


def test_a_blank_or_broken_picture_is_noticed(tmp_path: Path) -> None:
    def chunk(kind: bytes, data: bytes) -> bytes:
        crc = zlib.crc32(kind + data).to_bytes(4, "big")
        return len(data).to_bytes(4, "big") + kind + data + crc

    head = (4).to_bytes(4, "big") * 2 + bytes([8, 0, 0, 0, 0])
    parts = [(b"IHDR", head), (b"IDAT", zlib.compress(b"\0\7\7\7\7" * 4)), (b"IEND", b"")]
    png, svg = tmp_path / "a.png", tmp_path / "a.svg"
    png.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*p) for p in parts))
    svg.write_text('<svg xmlns="http://www.w3.org/2000/svg"><rect/><rect/><rect/></svg>')
    assert is_blank(png) and is_blank(svg)
    png.write_bytes(png.read_bytes()[:-30])
    svg.write_text("<svg><path></svg>")
    with pytest.raises((SyntaxError, OSError)):
        is_blank(png)
    with pytest.raises(ElementTree.ParseError):
        is_blank(svg)
