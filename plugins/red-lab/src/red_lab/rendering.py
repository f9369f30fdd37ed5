"""Pages as templates: Jinja2 files in `templates`, which get the keys of metrics.json as names."""

from __future__ import annotations

from statistics import median

from red_lab.metrics import Metrics

__all__ = ["render"]


def render(template: str, metrics: Metrics, *, package: str = "red_lab", **names: object) -> str:
    """Return a page; a name that neither the metrics nor the caller have is an error.

    Filters: ``number`` formats as Python's ``format`` does, ``points`` shows a difference of
    shares in percentage points, ``median`` is that of a list.

    Args:
        template: Name of the file, without ``.md.j2``.
        metrics: The content of metrics.json.
        package: Package whose folder `templates` has the file.
        names: What the template uses besides.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    pages = Environment(  # noqa: S701  (Markdown, of our own numbers)
        loader=PackageLoader(package),
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    pages.filters |= {"median": median, "number": format, "points": _points}
    return pages.get_template(f"{template}.md.j2").render(metrics, **names)


def _points(share: float) -> str:
    return f"{100 * share:+.1f}"
