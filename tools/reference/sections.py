"""Sections about JSON objects: one for each type, with a table of its keys."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from .docstrings import prose
from .markdown import slug, table
from .shapes import Key, keys, range_text, type_text

__all__ = ["links_to", "section"]


def links_to(shapes: Sequence[type]) -> Mapping[type, str]:
    """Return the Markdown links to each shape's section."""
    return {shape: f"[{shape.__name__}](#{slug(shape.__name__)})" for shape in shapes}


def section(shape: type, links: Mapping[type, str], *, defaults: bool) -> str:
    """Return the section of a shape.

    Args:
        shape: The type.
        links: The result of `links_to` for all shapes of the page.
        defaults: Whether users may leave keys out, as in a manifest.
    """
    head = (
        ("key", "type", "range", "if absent", "meaning") if defaults else ("key", "type", "meaning")
    )
    rows = [_row(key, links, defaults=defaults) for key in keys(shape)]
    return f"## {shape.__name__}\n\n{prose(shape)}\n\n{table(head, rows)}"


def _row(key: Key, links: Mapping[type, str], *, defaults: bool) -> tuple[str, ...]:
    name, type_ = f"`{key.name}`", type_text(key.type, links)
    text = re.sub(r"\bNone\b", "null", key.text)
    if not defaults:
        absent = " Absent if there is nothing to report." if key.optional else ""
        return name, type_, text + absent
    if key.default is None:
        default = "an error"
    else:
        default = key.default if key.default == "absent" else f"`{key.default}`"
    return name, type_, range_text(key.type), default, text
