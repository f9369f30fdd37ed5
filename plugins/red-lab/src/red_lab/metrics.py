"""What a study measured, as files: metrics.json, and the page and figures written from it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

__all__ = ["Metrics", "cached_json", "read_metrics", "write_json", "write_results"]

Metrics = Mapping[str, Any]
"""What metrics.json says."""

NAME = "metrics.json"

T = TypeVar("T")


def cached_json(file: Path, make: Callable[[], T]) -> T:
    """Return what was made before, or make it and write it down; a half-written file is none."""
    if not file.exists():
        _write_whole(json.dumps(make()), file)
    cached: T = json.loads(file.read_text("utf-8"))
    return cached


def read_metrics(folder: Path) -> dict[str, Any]:
    """Return what was measured before; nothing where there is no file."""
    path = folder / NAME
    found: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    return found


def write_json(found: object, path: Path, *, sort_keys: bool = True) -> Path:
    """Write a file whole or not at all; the folder is made.

    Raises:
        ValueError: If a number is none or infinite: JSON has neither.
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
    """Write metrics.json, and README.md and figures from what the file says.

    Args:
        metrics: What was measured.
        folder: Where all of it goes.
        page: Makes the text of README.md.
        draw: Makes figures in the folder.
        sort_keys: Whether keys are put in order; not where tables have the order of measuring.

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
