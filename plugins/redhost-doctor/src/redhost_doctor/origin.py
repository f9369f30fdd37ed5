"""Where an installed distribution came from, as its installer recorded it (PEP 610)."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit, urlunsplit

import msgspec

Kind = Literal["index", "added", "wheel", "folder", "editable", "url", "repository"]


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Where a distribution came from.

    Attributes:
        kind: ``index``, also for a folder of wheels that was searched by name; ``added``, a wheel,
            by `redhost add`, with its path; ``wheel``, a file; ``folder``, a project; ``editable``,
            a project in place; ``url``; ``repository``.
        place: The path, or the URL without credentials; empty if it is not known.
    """

    kind: Kind
    place: str = ""

    def __str__(self) -> str:
        if self.kind == "added":
            return f"a wheel, by redhost add {self.place}".rstrip()
        if self.kind == "index":
            return f"{self.place or 'an index or a folder of wheels'}, by name"
        return f"{self.kind} {self.place}"

    @property
    def is_there(self) -> bool:
        """Whether it is a path on this machine that still exists."""
        local = self.kind in {"wheel", "folder", "editable"}
        return local and Path(self.place).exists()


def origin_of(info: Path | None) -> Origin:
    """Return where a distribution came from.

    Args:
        info: Its dist-info folder; what was recorded for none, or cannot be read, counts as an
            index.
    """
    try:
        path = info and metadata.Distribution.at(info).read_text("direct_url.json")
        recorded = json.loads(path or "{}")
        url = str(recorded.get("url", ""))
        parts = urlsplit(url)
    except (ValueError, AttributeError, OSError, RecursionError):
        return Origin(kind="index")
    if not url:
        return Origin(kind="index")
    if "vcs_info" in recorded:
        return Origin(kind="repository", place=without_credentials(url))
    if parts.scheme != "file":
        return Origin(kind="url", place=without_credentials(url))
    folder = recorded.get("dir_info")
    kind: Kind = "wheel" if folder is None else "folder"
    if isinstance(folder, dict) and folder.get("editable") is True:
        kind = "editable"
    return Origin(kind=kind, place=unquote(parts.path))


def without_credentials(url: str) -> str:
    """Return a URL without the name and the password in it."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
