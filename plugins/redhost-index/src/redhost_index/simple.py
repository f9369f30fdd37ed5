"""An index for pip in a folder of wheels (PEP 503): ``simple/``, with a page for each project."""

from __future__ import annotations

import html
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import InvalidVersion

from redhost.registry import atomic

from .schema import Catalogue

FOLDER = "simple"
MARK = '<meta name="generator" content="redhost catalogue">'


def write_simple(folder: Path, catalogue: Catalogue) -> int:
    """Write the pages of wheels, and remove those of projects that have none any more.

    Args:
        folder: The folder of wheels.
        catalogue: What it has; what cannot be read gets no page.

    Returns:
        The number of projects.
    """
    links = defaultdict[str, list[tuple[str, str]]](list)
    readable = {v.file: v.sha256 for v in catalogue.versions if v.kind != "unreadable"}
    for file, sha256 in sorted({**catalogue.others, **readable}.items()):
        name = Path(file).name
        with suppress(InvalidWheelFilename, InvalidVersion):  # pip would pass it over
            address = f"../../{quote(file)}#sha256={sha256}"
            links[parse_wheel_filename(name)[0]].append((address, name))
    simple = folder / FOLDER
    with atomic.reporting(simple):
        for project, found in links.items():
            _write(simple / project, f"Links for {project}", found)
        _write(simple, "Simple index", [(f"{quote(name)}/", name) for name in sorted(links)])
        for page in simple.glob("*/index.html"):
            if page.parent.name not in links and MARK in page.read_text("utf-8", "replace"):
                page.unlink()
                with suppress(OSError):  # somebody keeps other files there
                    page.parent.rmdir()
    return len(links)


def _write(folder: Path, title: str, links: list[tuple[str, str]]) -> None:
    """Write a page of links."""
    rows = "".join(f'<a href="{html.escape(url)}">{html.escape(x)}</a><br>\n' for url, x in links)
    version = '<meta name="pypi:repository-version" content="1.0">'
    head = f"<head>{MARK}{version}<title>{html.escape(title)}</title></head>"
    page = f"<!DOCTYPE html>\n<html>{head}\n<body>\n{rows}</body></html>\n"
    atomic.make_folder(folder)
    atomic.write_atomic(folder / "index.html", page.encode())
