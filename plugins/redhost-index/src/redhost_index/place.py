"""Where versions are: an index, or a folder of wheels; nothing is fetched but what was named."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

from redhost_sync.index import MAX_WHEEL, TIMEOUT, Index, Link, NoPageError, Project, read_page

from redhost.registry.atomic import read_regular
from redhost.registry.errors import InstallError, MissingError, StoreError, UsageError
from redhost.registry.package.discover import canonical

from .reading import MAX_CATALOGUE, read_folder
from .schema import CATALOGUE, Catalogue, decode

FAILURES = 3
"""Failed requests after which a place is asked no more."""


class Place(Protocol):
    """A place that has wheels of several versions."""

    @property
    def name(self) -> str:
        """The place, without credentials."""
        ...

    def project(self, dist: str) -> Project:
        """Return what it says of a distribution."""
        ...

    def read(self, link: Link, *, most: int = MAX_WHEEL) -> bytes:
        """Return the bytes of a file."""
        ...

    def catalogue(self) -> Catalogue | None:
        """Return its catalogue, if it has one."""
        ...

    @property
    def given_up(self) -> str:
        """Why it is not asked any more; empty while it is."""
        ...


@dataclass(frozen=True)
class FolderPlace:
    """A folder of wheels, or one with a page for each project.

    Attributes:
        folder: The folder.
    """

    folder: Path
    given_up = ""

    @property
    def name(self) -> str:
        """The folder, wherever it is asked from: locks record it."""
        return str(self.folder.absolute())

    def project(self, dist: str) -> Project:
        """Return what the folder has of a distribution."""
        if not self.folder.is_dir():
            raise MissingError(f"there is no folder {self.folder}", hint="Name one with wheels.")
        if (found := read_page(self.folder, dist)) is not None:
            return found
        files = self._by_dist.get(canonical(dist), ())
        return Project(tuple(Link(p.name, p.as_uri()) for p in files), known=bool(files))

    @cached_property
    def _by_dist(self) -> dict[str, list[Path]]:
        found = dict[str, list[Path]]()
        for path in sorted(self.folder.resolve().glob("*.whl")):
            found.setdefault(canonical(path.name.partition("-")[0]), []).append(path)
        return found

    def read(self, link: Link, *, most: int = MAX_WHEEL) -> bytes:
        """Return the bytes of a file."""
        return self._read(Path(unquote(urlsplit(link.url).path)), most=most)

    def catalogue(self) -> Catalogue | None:
        """Return its catalogue, or that of the folder around its pages."""
        return read_folder(self.folder)

    @staticmethod
    def _read(path: Path, *, most: int) -> bytes:
        try:
            return read_regular(path, limit=most)
        except OSError as e:
            raise StoreError(f"cannot read {path}", found=e.strerror or str(e)) from e


@dataclass(frozen=True, eq=False)
class IndexPlace:
    """An index over HTTP, which is not asked any more when it has failed several times.

    Attributes:
        index: The index.
        failed: Why requests failed.
        guard: Held while `failed` is used.
    """

    index: Index
    failed: list[InstallError] = field(default_factory=list)
    guard: threading.Lock = field(default_factory=threading.Lock)

    @property
    def name(self) -> str:
        """Its address, without credentials."""
        return str(self.index)

    def project(self, dist: str) -> Project:
        """Return what the index says of a distribution."""
        if why := self.given_up:
            raise InstallError(why)
        try:
            return self.index.project(dist)
        except NoPageError:  # it answers: other projects may have a page
            raise
        except InstallError as e:
            with self.guard:
                self.failed.append(e)
            raise

    @property
    def given_up(self) -> str:
        """Why it is not asked any more; empty while it is."""
        with self.guard:
            if len(self.failed) < FAILURES:
                return ""
            return InstallError(f"cannot read {self.name}", found=self.failed[0].found).reason

    def read(self, link: Link, *, most: int = MAX_WHEEL) -> bytes:
        """Download a file."""
        return self.index.read(link, most=most)

    def catalogue(self) -> Catalogue | None:
        """Return its catalogue, or that of the folder around its pages."""
        root = self.index.url.rstrip("/")
        above = ("", "../") if urlsplit(root).path.endswith("/simple") else ("",)
        for name in (f"{where}{CATALOGUE}" for where in above):
            data = self.index.beside(name, most=MAX_CATALOGUE)
            if data is not None:
                return decode(data, f"{CATALOGUE} of {self.name}")
        return None


def place_at(where: str, *, timeout: float = TIMEOUT) -> Place:
    """Return the place at an address or in a folder.

    Raises:
        UsageError: If it is an address of another kind.
    """
    scheme, found = urlsplit(where).scheme, where
    if scheme in {"http", "https"}:
        return IndexPlace(Index(where, timeout))
    if scheme == "file":
        found = unquote(urlsplit(where).path)
    elif "://" in where:
        expected = "an index at http:// or https://, or a folder"
        raise UsageError(f"cannot read versions at {scheme}://", expected=expected, found=scheme)
    return FolderPlace(Path(found))
