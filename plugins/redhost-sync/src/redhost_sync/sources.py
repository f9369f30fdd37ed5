"""Where wheels come from: a folder, an index, or what a killed `sync` had obtained."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

from packaging.tags import Tag, sys_tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from redhost.registry.atomic import read_regular
from redhost.registry.environment import python_command
from redhost.registry.errors import IntegrityError, MissingError, StoreError, short
from redhost.registry.package.discover import canonical
from redhost.registry.package.readers import MAX_LARGE
from redhost.registry.package.safetensors_check import sha256_hex
from redhost.registry.wheel.signing import signature_path

from .index import MAX_SIGNATURE, TIMEOUT, Index, read_page, signature_of
from .manifest import MANIFEST, WheelList, read_list

PYPI = "https://pypi.org/simple"


@dataclass(frozen=True, kw_only=True)
class Offer:
    """A wheel that a source has.

    Attributes:
        file: Its file name.
        version: Its version.
        sha256: The sha256 that the source promises; empty if it does not.
        listed: Whether the promise is of a list that `export-wheels` wrote.
        read: Returns its bytes.
        signature: Returns the bytes of its signature, which lies beside it if there is one.
    """

    file: str
    version: Version
    sha256: str
    listed: bool
    read: Callable[[], bytes]
    signature: Callable[[], bytes]


class Source(Protocol):
    """A place that has wheels."""

    @property
    def name(self) -> str:
        """The place, for messages."""
        ...

    def offers(self, dist: str) -> tuple[Offer, ...]:
        """Return the wheels of a distribution that fit this machine, newest first."""
        ...

    def router(self, digest: str) -> bytes | None:
        """Return the weights of a router, if it has them."""
        ...


@dataclass(frozen=True)
class FolderSource:
    """A folder of wheels; if it has a list, only what the list names, and with its sha256.

    Or one with a page for each project, as an index has them: of its links, those to files.

    Attributes:
        folder: The folder.
    """

    folder: Path

    @property
    def name(self) -> str:
        """The folder."""
        return str(self.folder)

    @cached_property
    def listed(self) -> WheelList | None:
        """The list of the folder.

        Raises:
            MissingError: If there is no such folder.
        """
        if not self.folder.is_dir():
            raise MissingError(
                f"there is no folder {self.folder}",
                hint="Name a folder that 'redhost export-wheels FOLDER' wrote, with --from.",
            )
        return read_list(self.folder)

    def offers(self, dist: str) -> tuple[Offer, ...]:
        """Return the wheels of a distribution that fit this machine, newest first."""
        if self.listed is not None:
            wheels = {self._path(one.file): one.sha256 for one in self.listed.wheels}
        else:
            wheels = dict.fromkeys(sorted(self.folder.glob("*.whl")), "") | self._linked(dist)
        offers = (
            Offer(
                file=path.name,
                version=version,
                sha256=sha256,
                listed=self.listed is not None,
                read=partial(self._read, path),
                signature=partial(self._read, signature_path(path)),
            )
            for path, sha256 in wheels.items()
            if (version := fitting(path.name, dist)) is not None
        )
        return tuple(sorted(offers, key=lambda offer: offer.version, reverse=True))

    def router(self, digest: str) -> bytes | None:
        """Return the weights of a router, if the list names them."""
        file = None if self.listed is None else self.listed.routers.get(digest)
        return None if file is None else self._read(self._path(file))

    def _path(self, file: str) -> Path:
        return self.folder / Path(file).name

    def _linked(self, dist: str) -> dict[Path, str]:
        """Return the wheels that a distribution's page links to, with the sha256 it promises."""
        found = read_page(self.folder, dist)
        links = () if found is None else found.links
        return {Path(unquote(urlsplit(link.url).path)): link.sha256 for link in links}

    def _read(self, path: Path) -> bytes:
        try:
            return read_regular(path, limit=MAX_LARGE)
        except FileNotFoundError as e:
            raise MissingError(
                f"{self.folder} lacks {path.name}",
                found=f"its name in {MANIFEST if self.listed else 'its page'}, and no such file",
                hint="Nothing was changed. Export the wheels again.",
            ) from e
        except OSError as e:
            raise StoreError(f"cannot read {path}", found=str(e)) from e


@dataclass(frozen=True)
class IndexSource:
    """An index.

    Attributes:
        index: The index.
    """

    index: Index

    @property
    def name(self) -> str:
        """Its address, without credentials."""
        return str(self.index)

    def offers(self, dist: str) -> tuple[Offer, ...]:
        """Return the wheels of a distribution that fit this machine, newest first."""
        offers = (
            Offer(
                file=link.file,
                version=version,
                sha256=link.sha256,
                listed=False,
                read=partial(self.index.read, link),
                signature=partial(self.index.read, signature_of(link), most=MAX_SIGNATURE),
            )
            for link in self.index.links(dist)
            if (version := fitting(link.file, dist)) is not None
        )
        return tuple(sorted(offers, key=lambda offer: offer.version, reverse=True))

    def router(self, digest: str) -> bytes | None:  # noqa: ARG002
        """Return None: an index has no routers."""
        return None


@cache
def _tags() -> frozenset[Tag]:
    """Return what this interpreter can install; listing it takes longer than comparing."""
    return frozenset(sys_tags())


def fitting(file: str, dist: str) -> Version | None:
    """Return the version of a wheel by its name, None if it is of another package or machine."""
    if not file.endswith(".whl"):
        return None
    try:
        name, version, _, tags = parse_wheel_filename(file)
    except (InvalidWheelFilename, InvalidVersion):
        return None
    return version if name == canonical(dist) and tags & _tags() else None


def read_offer(offer: Offer, source: Source, *, pinned: str = "") -> bytes:
    """Return the bytes of an offer, if they are what was promised.

    Args:
        offer: The offer.
        source: Who makes it.
        pinned: The sha256 in the lock; what a list promises is held to the list, since
            `export-wheels` packs again.

    Raises:
        IntegrityError: If they are not.
    """
    data = offer.read()
    found, pinned = sha256_hex(data), "" if offer.listed else pinned
    for promise, who in ((offer.sha256, source.name), (pinned, "the lock")):
        if promise and promise != found:
            raise IntegrityError(
                f"{offer.file} of {source.name} has other bytes than {who} promises",
                expected=short(promise),
                found=short(found),
                hint="Nothing was changed. Get it again, or from another place.",
            )
    return data


def default_index(*, timeout: float = TIMEOUT) -> IndexSource:
    """Return the index that the user set for pip or uv, or PyPI."""
    return IndexSource(Index(next(set_by_user(), PYPI), timeout))


def set_by_user() -> Iterator[str]:
    """Yield the indexes that the user set for pip or uv, the first that counts first."""
    for name in ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL"):
        if url := os.environ.get(name):
            yield url
    command = python_command("-m", "pip", "config", "get", "global.index-url")
    done = subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603
    if done.returncode == 0 and (url := done.stdout.strip()):
        yield url


def source_at(place: str, *, timeout: float = TIMEOUT) -> Source:
    """Return the source at an address, in a folder, or around a wheel that a lock names."""
    if place.startswith(("http://", "https://")):
        return IndexSource(Index(place, timeout))
    path = Path(unquote(urlsplit(place).path) if place.startswith("file://") else place)
    return FolderSource(path.parent if path.suffix == ".whl" else path)
