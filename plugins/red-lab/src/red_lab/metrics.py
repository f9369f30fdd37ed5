"""The results of a study as files: metrics.json, and the page and figures written from it.

Pages are Jinja2 templates in `templates`, which get the keys of metrics.json as names.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

__all__ = ["Metrics", "cached_json", "drawing", "read_metrics", "render", "write_json"]
__all__ += ["whole", "write_results"]

Metrics = Mapping[str, Any]
"""The content of metrics.json."""

NAME = "metrics.json"

T = TypeVar("T")


def cached_json(file: Path, make: Callable[[], T]) -> T:
    """Return a stored result, or compute and store it; the file is written atomically."""
    if not file.exists():
        text = json.dumps(make())
        with whole(file) as part:
            part.write_text(text, "utf-8")
    cached: T = json.loads(file.read_text("utf-8"))
    return cached


def read_metrics(folder: Path) -> dict[str, Any]:
    """Return stored metrics, or an empty dictionary if there is no file."""
    path = folder / NAME
    found: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    return found


def write_json(found: object, path: Path, *, sort_keys: bool = True) -> Path:
    """Write a JSON file atomically; the folder is created.

    Raises:
        ValueError: If a number is NaN or infinite: JSON has neither.
    """
    text = json.dumps(found, indent=2, sort_keys=sort_keys, allow_nan=False) + "\n"
    with whole(path) as part:
        part.write_text(text, "utf-8")
    return path


def write_results(
    metrics: Metrics,
    folder: Path,
    *,
    page: Callable[[Metrics], str],
    draw: Callable[[Metrics, Path], object] | None = None,
    sort_keys: bool = True,
) -> Path:
    """Write metrics.json, and README.md and figures from the written file.

    Args:
        metrics: The measurements.
        folder: Folder of all files.
        page: Returns the text of README.md.
        draw: Writes figures to the folder.
        sort_keys: Whether keys are sorted; False if tables keep the order of measurement.

    Returns:
        The path of metrics.json.
    """
    path = write_json(metrics, folder / NAME, sort_keys=sort_keys)
    read = read_metrics(folder)
    (folder / "README.md").write_text(page(read), "utf-8")
    if draw is not None:
        draw(read, folder)
    return path


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Yield where to write a file, or a folder, which is moved to its place once it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    yield part
    part.replace(path)


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


@contextmanager
def drawing(
    path: Path, *, salt: str, settings: Mapping[Any, Any] | None = None, **options: Any
) -> Iterator[Any]:
    """Yield the axes of a figure, rows by columns, which is then written without a date.

    The same numbers give the same bytes. Matplotlib is imported here only.

    Args:
        path: The file.
        salt: What the names of a figure's parts depend on.
        settings: Matplotlib's settings.
        options: Those of `matplotlib.pyplot.subplots`.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    with mpl.rc_context({"svg.hashsalt": salt, "font.size": 9, **(settings or {})}):
        figure, axes = plt.subplots(squeeze=False, **{"layout": "constrained", **options})
        yield axes
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)
