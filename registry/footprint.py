"""Which files an installed package has: names alone, so that a hundred packages are quick."""

from __future__ import annotations

import os
from collections.abc import Iterator

from .discover import Package

__all__ = ["file_names"]


def file_names(package: Package) -> tuple[str, ...]:
    """Return every file of an installed package and its dist-info, relative to the site folder.

    Byte code is left out; a link to a folder counts as a file, so that nobody follows it.
    """
    if package.info is None:
        return ()
    site = package.info.parent
    folders = (site / package.module, package.info)
    return tuple(sorted(name for folder in folders for name in _walk(str(folder), folder.name)))


def _walk(folder: str, name: str) -> Iterator[str]:
    try:
        with os.scandir(folder) as found:
            for entry in found:
                below = f"{name}/{entry.name}"
                if entry.name == "__pycache__":
                    continue
                if entry.is_dir(follow_symlinks=False):
                    yield from _walk(entry.path, below)
                else:
                    yield below
    except OSError:  # a folder that cannot be read has no files; RECORD then misses them
        return
