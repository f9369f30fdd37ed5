"""The results of a study as files: metrics.json, and the page and figures written from it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

__all__ = ["Metrics", "cached_json", "read_metrics", "write_json", "write_results"]

Metrics = Mapping[str, Any]
"""The content of metrics.json."""

NAME = "metrics.json"

T = TypeVar("T")


def cached_json(file: Path, make: Callable[[], T]) -> T:
    """Return a stored result, or compute and store it; the file is written atomically."""
    if not file.exists():
        _write_whole(json.dumps(make()), file)
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


def _write_whole(text: str, path: Path) -> None:
    part = path.with_suffix(".part")
    part.write_text(text, "utf-8")
    part.replace(path)
