"""Write a new project's folder, or nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from redhost.registry.atomic import remove_folder, reporting


@contextmanager
def making(folder: Path) -> Iterator[None]:
    """Write files into a folder; if that fails or is refused, a new folder is removed again.

    Raises:
        StoreError: If the disk is full, failing or read-only.
    """
    new = not folder.exists()
    try:
        with reporting(folder):
            yield
    except BaseException:
        if new:
            with suppress(OSError):
                remove_folder(folder)
        raise
