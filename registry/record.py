"""RECORD and what it leads to: which files belong to a distribution, read by path first.

A RECORD row may point anywhere (``../../etc/passwd``, ``/dev/zero``), so a row is refused by its
path before anything is opened.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import sysconfig
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path, PurePosixPath

from .discover import canonical, entries
from .errors import IntegrityError, UnknownNameError
from .integrity import sha256_hex

__all__ = ["digest_of", "distribution"]

_INSTALLER = {"INSTALLER", "RECORD", "REQUESTED", "direct_url.json", "uv_cache.json"}
"""Files of a dist-info that differ from machine to machine for the same wheel."""

_GROUPS = ("redhost.plugins", "redhost.commands")


def distribution(dist: str) -> metadata.Distribution:
    """Find an installed distribution.

    Raises:
        UnknownNameError: If it is not installed.
    """
    try:
        return metadata.distribution(dist)
    except (metadata.PackageNotFoundError, ValueError) as e:
        known = {canonical(found.metadata["Name"] or "") for found in metadata.distributions()}
        raise UnknownNameError("distribution", dist, known - {""}) from e


def digest_of(dist: str) -> str:
    """Return the sha256 over the content of every file of a distribution.

    It covers the files RECORD lists and any other file inside their packages; for an editable
    installation, the source files of the modules that its entry points name. It does not cover
    byte code, nor what installers write.

    Raises:
        UnknownNameError: If it is not installed.
        IntegrityError: If RECORD is missing, names a missing file, or leaves the site folder.
    """
    found = distribution(dist)
    files = dict(_editable_files(found) or _recorded_files(dist, found))
    lines = [f"{name}\0{_sha256(dist, path)}\n" for name, path in sorted(files.items())]
    return sha256_hex("".join(lines).encode())


def _recorded_files(dist: str, found: metadata.Distribution) -> Iterator[tuple[str, Path]]:
    """Yield relative name and path of each file that counts."""
    site = Path(str(found.locate_file(""))).resolve()
    rows = list(_rows(dist, found.read_text("RECORD"), site))
    for row in rows:
        if not _is_installers(row):
            yield str(row), site / row
    for row in rows:
        if row.name == "__init__.py":  # an unlisted file beside it would be imported all the same
            yield from _walk(site / row.parent, site)


def _rows(dist: str, record: str | None, site: Path) -> Iterator[PurePosixPath]:
    if not record:
        raise IntegrityError(f"{dist} cannot be trusted", expected="a RECORD", found="none")
    scripts = Path(sysconfig.get_path("scripts")).resolve()
    for fields in csv.reader(io.StringIO(record)):
        if not fields:
            continue
        path = (site / fields[0]).resolve()
        if path.is_relative_to(site):
            yield PurePosixPath(path.relative_to(site).as_posix())
        elif path.parent != scripts:  # console scripts are written by the installer
            raise IntegrityError(
                f"{dist} cannot be trusted",
                expected="files inside the site folder",
                found=repr(fields[0][:80]),
                hint=f"Uninstall it with 'pip uninstall {dist}' and tell its author.",
            )


def _is_installers(row: PurePosixPath) -> bool:
    if row.suffix == ".pyc":
        return True
    return row.parent.name.endswith(".dist-info") and row.name in _INSTALLER


def _editable_files(found: metadata.Distribution) -> dict[str, Path]:
    """Return the source files of an editable installation; empty for any other."""
    if '"editable"' not in (found.read_text("direct_url.json") or ""):
        return {}
    text = found.read_text("entry_points.txt") or ""
    values = [value for group in _GROUPS for _, value in entries(text, group)]
    modules = sorted({value.partition(":")[0].partition(".")[0].strip() for value in values})
    return {name: path for module in modules for name, path in _sources(module)}


def _sources(module: str) -> Iterator[tuple[str, Path]]:
    spec = importlib.util.find_spec(module)
    if spec is None:
        return
    for place in spec.submodule_search_locations or ():
        yield from _walk(Path(place), Path(place).parent)
    if spec.submodule_search_locations is None and spec.origin is not None:
        yield Path(spec.origin).name, Path(spec.origin)


def _walk(folder: Path, root: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix != ".pyc":
            yield path.relative_to(root).as_posix(), path


def _sha256(dist: str, path: Path) -> str:
    try:
        return sha256_hex(path.read_bytes())
    except OSError as e:
        raise IntegrityError(
            f"{dist} cannot be trusted",
            expected=str(path),
            found=str(e.strerror),
            hint=f"Reinstall it with 'pip install --force-reinstall {dist}'.",
        ) from e
