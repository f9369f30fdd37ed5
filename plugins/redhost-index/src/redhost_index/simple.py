"""An index for pip in a folder of wheels (PEP 503): ``simple/``, with a page for each project."""

from __future__ import annotations

import html
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import InvalidVersion
from redhost_sync.index import read_page

from redhost.registry import atomic

from .schema import Catalogue

FOLDER = "simple"
MARK = '<meta name="generator" content="redhost catalogue">'


def write_simple(folder: Path, catalogue: Catalogue) -> int:
    """Write the pages of wheels, and remove those of projects that have none any more.

    A link that was marked as yanked stays so (PEP 592).

    Args:
        folder: The folder of wheels.
        catalogue: What it has; what cannot be read gets no page.

    Returns:
        The number of projects.

    Raises:
        StoreError: If a page of such a project cannot be read or written.
    """
    links = defaultdict[str, list[_Link]](list)
    readable = {v.file: v.sha256 for v in catalogue.versions if v.kind != "unreadable"}
    for file, sha256 in sorted({**catalogue.others, **readable}.items()):
        name = Path(file).name
        with suppress(InvalidWheelFilename, InvalidVersion):  # pip would pass it over
            address = f"../../{quote(file)}#sha256={sha256}"
            links[parse_wheel_filename(name)[0]].append(_Link(address, name))
    simple = folder / FOLDER
    with atomic.reporting(simple):
        for project, found in links.items():
            yanked = _yanked(simple, project)
            marked = [replace(link, yanked=yanked.get(link.text)) for link in found]
            _write(simple / project, f"Links for {project}", marked)
        _write(simple, "Simple index", [_Link(f"{quote(name)}/", name) for name in sorted(links)])
        for page in simple.glob("*/index.html"):
            if page.parent.name not in links and MARK in page.read_text("utf-8", "replace"):
                page.unlink()
                with suppress(OSError):  # somebody keeps other files there
                    page.parent.rmdir()
    return len(links)


@dataclass(frozen=True)
class _Link:
    """A link of a page; `yanked` is why its file was called back, None if it was not."""

    url: str
    text: str
    yanked: str | None = None

    def __str__(self) -> str:
        mark = "" if self.yanked is None else f' data-yanked="{html.escape(self.yanked)}"'
        return f'<a href="{html.escape(self.url)}"{mark}>{html.escape(self.text)}</a><br>\n'


def _yanked(simple: Path, project: str) -> dict[str, str | None]:
    """Return which files a project's page marks as yanked, and why."""
    page = read_page(simple, project)
    return {link.file: link.yanked for link in page.links} if page else {}


def _write(folder: Path, title: str, links: Sequence[_Link]) -> None:
    """Write a page of links."""
    version = '<meta name="pypi:repository-version" content="1.0">'
    head = f"<head>{MARK}{version}<title>{html.escape(title)}</title></head>"
    page = f"<!DOCTYPE html>\n<html>{head}\n<body>\n{''.join(map(str, links))}</body></html>\n"
    atomic.make_folder(folder)
    atomic.write_atomic(folder / "index.html", page.encode())
