"""Read the catalogue that a file, a folder or an index has; a local one needs no network code."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from redhost.registry.atomic import read_regular
from redhost.registry.errors import MissingError, StoreError

from .schema import CATALOGUE, Catalogue, decode

MAX_CATALOGUE = 2**28


def catalogue_at(where: str, *, timeout: float) -> Catalogue:
    """Return the catalogue that a file, a folder or an index has.

    Args:
        where: A path or an address.
        timeout: How long an index may be silent.

    Raises:
        MissingError: If it has none.
        StoreError: If it cannot be read.
        InstallError: If an index does not answer.
    """
    parts = urlsplit(where)
    if "://" not in where or parts.scheme == "file":
        path = Path(unquote(parts.path) if parts.scheme == "file" else where)
        name, found = str(path), _read(path) if path.is_file() else read_folder(path)
    else:
        from .place import place_at

        place = place_at(where, timeout=timeout)
        name, found = place.name, place.catalogue()
    if found is None:
        hint = "Name another place with --index-url or --catalogue; 'redhost catalogue FOLDER' "
        hint += "writes one where the wheels are."
        raise MissingError(f"there is no {CATALOGUE} at {name!r}", hint=hint)
    return found


def read_folder(folder: Path) -> Catalogue | None:
    """Return the catalogue of a folder, if it has one.

    `make index` writes it beside ``simple``, which has the pages.
    """
    folder = folder.resolve()
    for place in (folder, folder.parent) if folder.name == "simple" else (folder,):
        if (place / CATALOGUE).is_file():
            return _read(place / CATALOGUE)
    return None


def _read(path: Path) -> Catalogue:
    try:
        data = read_regular(path, limit=MAX_CATALOGUE)
    except OSError as e:
        raise StoreError(f"cannot read {path}", found=e.strerror or str(e)) from e
    return decode(data, str(path))
