"""Folders that take long to fill, such as homes: filled by one test, copied for the others."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

__all__ = ["made_once"]


def made_once(
    paths: pytest.TempPathFactory,
) -> Callable[[str, Path], AbstractContextManager[bool]]:
    """Return a context that fills a folder with what was left in it under that name before.

    It tells whether there is nothing yet under that name: the block that gets True fills the
    folder, and if it fails, the next one gets True as well.
    """
    copies = dict[str, Path]()

    @contextmanager
    def fill(name: str, folder: Path) -> Iterator[bool]:
        if name in copies:
            shutil.copytree(copies[name], folder)
            yield False
            return
        yield True
        copies[name] = Path(shutil.copytree(folder, paths.mktemp("once") / "copy"))

    return fill
