"""Fetch the list of an index that the user named, now or when an expert was added from it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urljoin

from redhost_sync.index import Index, Link
from redhost_sync.sources import IndexSource, source_at

from redhost.registry.atomic import read_regular
from redhost.registry.errors import MissingError, StoreError, UsageError
from redhost.registry.home.composition import LOCK, read_lock
from redhost.registry.home.questions import homes_with, place_of
from redhost.registry.home.revoked import REVOKED

from .lists import MOST


@dataclass(frozen=True, kw_only=True)
class Fetched:
    """A list as an index has it, unverified.

    Attributes:
        where: The place, without credentials.
        data: Its bytes.
    """

    where: str
    data: bytes


def recorded_places(home: Path) -> tuple[str, ...]:
    """Return the indexes and folders that a home's locks record.

    Raises:
        UsageError: If there is none: nothing is fetched that nobody named.
    """
    places = set[str]()
    for where in homes_with(home):
        if (lock := read_lock(where / LOCK)) is not None:
            sources = (*(x.source for x in lock.experts.values()), lock.backbone.source or "")
            # A wheel that was given by its path is no place that has a list.
            places |= {place_of(x, where) for x in sources if x and not x.endswith(".whl")}
    if not places:
        raise UsageError(
            "no index is named",
            expected="--index-url URL, or a lock that records where an expert came from",
            found=f"no source in the locks of {home}",
        )
    return tuple(sorted(places))


def fetch_lists(places: Iterable[str], *, timeout: float) -> tuple[Fetched, ...]:
    """Read the list of each place.

    Raises:
        RedhostError: If one cannot be read, or has none.
    """
    return tuple(_fetch(place, timeout=timeout) for place in places)


def _fetch(place: str, *, timeout: float) -> Fetched:
    source = source_at(place, timeout=timeout)
    if isinstance(source, IndexSource):
        return Fetched(where=source.name, data=_download(source.index))
    path = Path(source.name) / REVOKED
    try:
        return Fetched(where=source.name, data=read_regular(path, limit=MOST))
    except FileNotFoundError as e:
        raise MissingError(f"{source.name} has no list of what is revoked", found="nothing") from e
    except OSError as e:
        raise StoreError(f"cannot read {path}", found=str(e)) from e


def _download(index: Index) -> bytes:
    link = Link(REVOKED, urljoin(f"{index.url.rstrip('/')}/", REVOKED))
    return index.read(link, most=MOST)
