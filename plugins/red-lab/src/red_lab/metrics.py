"""A study's results as files: metrics.json, and the page and figures written from it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

__all__ = ["Metrics", "cached_json", "read_metrics", "write_json", "write_results"]

Metrics = Mapping[str, Any]
"""The contents of metrics.json."""

NAME = "metrics.json"

T = TypeVar("T")


def cached_json(file: Path, make: Callable[[], T]) -> T:
    """Return the cached value of a file, or compute and save it; incomplete files are ignored."""
    if not file.exists():
        _write_whole(json.dumps(make()), file)
    cached: T = json.loads(file.read_text("utf-8"))
    return cached


def read_metrics(folder: Path) -> dict[str, Any]:
    """Return the existing metrics; an empty dict if there is no file."""
    path = folder / NAME
    found: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    return found


def write_json(found: object, path: Path, *, sort_keys: bool = True) -> Path:
    """Write a JSON file atomically; the folder is created.

    Raises:
        ValueError: If a number is NaN or infinite: JSON has neither.
    """
    text = json.dumps(found, indent=2, sort_keys=sort_keys, allow_nan=False) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    _write_whole(text, path)
    return path


def write_results(
    metrics: Metrics,
    folder: Path,
    *,
    page: Callable[[Metrics], str],
    draw: Callable[[Metrics, Path], object] | None = None,
    sort_keys: bool = True,
) -> Path:
    """Write metrics.json, and README.md and figures from its contents.

    Args:
        metrics: The measurements.
        folder: The folder for all files.
        page: Returns the text of README.md.
        draw: Writes figures into the folder.
        sort_keys: Whether to sort keys; False if tables keep the order of measurement.

    Returns:
        The path of metrics.json.
    """
    path = write_json(metrics, folder / NAME, sort_keys=sort_keys)
    read = read_metrics(folder)
    (folder / "README.md").write_text(page(read), "utf-8")
    if draw is not None:
        draw(read, folder)
    return path


def _write_whole(text: str, path: Path) -> None:
    part = path.with_suffix(".part")
    part.write_text(text, "utf-8")
    part.replace(path)
