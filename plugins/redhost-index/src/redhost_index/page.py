"""The catalogue as one page, which loads nothing and can be read without scripts."""

from __future__ import annotations

from urllib.parse import quote

import jinja2

from .schema import Catalogue


def catalogue_page(catalogue: Catalogue) -> str:
    """Return a catalogue as a page."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("redhost_index"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["share"] = lambda x: "" if x is None else f"{x:.3f}"
    made.filters["size"] = lambda n: f"{n / 1024:,.0f} KiB"
    made.filters["path"] = lambda file: f"./{quote(file)}"
    return made.get_template("catalogue.html").render(catalogue=catalogue)
