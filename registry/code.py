"""The code a plugin brings, by content: what `redhost trust` records and every load compares."""

from __future__ import annotations

import importlib.util
import os
import sysconfig
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path, PurePosixPath

from .discover import canonical, entries, is_editable
from .errors import IntegrityError, UnknownNameError, short
from .integrity import sha256_hex
from .record import Row, parse_record
from .violations import Violation

__all__ = ["digest_of", "distribution", "verified_digest"]

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
    return _digest(_contents(dist, _files(dist, found)))


def verified_digest(dist: str) -> str:
    """Return `digest_of`, of files that are exactly what RECORD says; editable ones have none.

    Raises:
        UnknownNameError: If it is not installed.
        IntegrityError: Also if a file changed after the installation, or RECORD lacks it.
    """
    found = distribution(dist)
    contents = _contents(dist, _files(dist, found))
    if not is_editable(found):
        _verify(dist, _rows(dist, found), contents)
    return _digest(contents)


def _files(dist: str, found: metadata.Distribution) -> dict[str, Path]:
    return dict(_editable_files(found) if is_editable(found) else _recorded_files(dist, found))


def _contents(dist: str, files: Mapping[str, Path]) -> dict[str, str]:
    return {name: _sha256(dist, path) for name, path in sorted(files.items())}


def _digest(contents: Mapping[str, str]) -> str:
    return sha256_hex("".join(f"{name}\0{sha}\n" for name, sha in contents.items()).encode())


def _verify(dist: str, rows: Mapping[str, Row], contents: Mapping[str, str]) -> None:
    """Compare contents with the rows of RECORD."""
    for name, sha in contents.items():
        told = rows[name].sha256 if name in rows else ""
        if told != sha:
            expected = f"{short(told)}, as RECORD says" if told else "a row with a hash in RECORD"
            raise IntegrityError(
                f"{dist} cannot be trusted: {name}",
                expected=expected,
                found=short(sha),
                hint=f"Reinstall it with 'pip install --force-reinstall --no-deps {dist}'.",
            )


def _recorded_files(dist: str, found: metadata.Distribution) -> Iterator[tuple[str, Path]]:
    """Yield relative name and path of each file that counts."""
    site, rows = _site(found), _rows(dist, found)
    for name in rows:
        if not _is_installers(PurePosixPath(name)):
            yield name, site / name
    for name in rows:
        path = PurePosixPath(name)
        if path.name == "__init__.py":  # an unlisted file beside it would be imported all the same
            yield from _walk(site / path.parent, site)


def _rows(dist: str, found: metadata.Distribution) -> dict[str, Row]:
    """Return the rows of RECORD inside the site folder, by normal path."""
    text = found.read_text("RECORD")
    if not text:
        raise IntegrityError(f"{dist} cannot be trusted", expected="a RECORD", found="none")
    rows = parse_record(text.encode())
    if isinstance(rows, Violation):
        raise rows.error(f"{dist} cannot be trusted")
    site, inside = _site(found), {}
    scripts = Path(os.path.normpath(sysconfig.get_path("scripts")))
    for row in rows:
        path = Path(os.path.normpath(site / row.path))
        if path.is_relative_to(site) and "\0" not in row.path:
            inside[path.relative_to(site).as_posix()] = row
        elif path.parent != scripts:  # console scripts are written by the installer
            raise IntegrityError(
                f"{dist} cannot be trusted",
                expected="files inside the site folder",
                found=repr(row.path[:80]),
                hint=f"Uninstall it with 'pip uninstall {dist}' and tell its author.",
            )
    return inside


def _site(found: metadata.Distribution) -> Path:
    return Path(os.path.normpath(Path.cwd() / str(found.locate_file(""))))


def _is_installers(row: PurePosixPath) -> bool:
    if row.suffix == ".pyc":
        return True
    return row.parent.name.endswith(".dist-info") and row.name in _INSTALLER


def _editable_files(found: metadata.Distribution) -> Iterator[tuple[str, Path]]:
    """Yield the source files of an editable installation."""
    text = found.read_text("entry_points.txt") or ""
    values = [value for group in _GROUPS for _, value in entries(text, group)]
    for module in sorted({value.partition(":")[0].partition(".")[0].strip() for value in values}):
        yield from _sources(module)


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
