"""Which plugins the user trusts, by the digest of their code: recorded per user, not per project.

A plugin that has changed since is no longer trusted. Python has no sandbox: a trusted plugin can do
whatever the user can.
"""

from __future__ import annotations

import importlib.util
import os
import sysconfig
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Literal

from msgspec import Struct

from .. import atomic
from ..atomic import read_head, read_regular
from ..errors import IntegrityError, UnknownNameError, short
from ..home.locks import WriterLock
from ..package.discover import canonical, entries, is_editable
from ..package.readers import MAX_LARGE
from ..package.safetensors_check import sha256_hex
from ..wheel.policy import RecordRow, parse_record
from .installed import files_below

_INSTALLER = {"INSTALLER", "RECORD", "REQUESTED", "direct_url.json", "uv_cache.json"}
"""Files of a dist-info that differ between machines for the same wheel."""

_PYC_HEAD, _UNCHECKED = 16, b"\x01\0\0\0"
"""Header bytes of a .pyc; the flags of byte code that Python runs without checking its source."""

_GROUPS = ("redhost.plugins", "redhost.commands")


class _Trusted(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    schema: Literal["redhost.trust/1"] = "redhost.trust/1"
    digests: dict[str, str] = {}


def config_folder(env: Mapping[str, str] = os.environ) -> Path:
    """Return the user's folder of settings; ``REDHOST_CONFIG`` overrides it."""
    if env.get("REDHOST_CONFIG"):
        return Path(env["REDHOST_CONFIG"])
    from platformdirs import user_config_dir

    return Path(user_config_dir("redhost"))


def trusted(*, folder: Path | None = None) -> dict[str, str]:
    """Return distribution → digest of the content the user agreed to run.

    Args:
        folder: The folder of ``trust.json``; the user's own folder when None.

    Raises:
        StoreError: If the record is invalid or damaged.
    """
    hint = "Remove it, then trust again what should be."
    record = atomic.read_struct(_path(folder), _Trusted, hint=hint)
    return dict(record.digests) if record else {}


def is_trusted(dist: str, *, folder: Path | None = None) -> bool:
    """Return whether a distribution's content is what the user agreed to."""
    agreed = trusted(folder=folder).get(canonical(dist))
    return agreed is not None and agreed == digest_of(dist)


def trust(dist: str, *, folder: Path | None = None) -> str:
    """Record that the user agrees to run a distribution as it is now; return its digest.

    Raises:
        UnknownNameError: If it is not installed.
        IntegrityError: If any of its files differs from its RECORD.
    """
    digest = verified_digest(dist)
    _change({canonical(dist): digest}, folder)
    return digest


def distrust(dist: str, *, folder: Path | None = None) -> None:
    """Remove the trust in a distribution."""
    _change({canonical(dist): None}, folder)


def distribution(dist: str) -> metadata.Distribution:
    """Find an installed distribution.

    Raises:
        UnknownNameError: If it is not installed.
    """
    try:
        return metadata.distribution(dist)
    except (metadata.PackageNotFoundError, ValueError) as e:
        known = {canonical(other.metadata["Name"] or "") for other in metadata.distributions()}
        raise UnknownNameError("distribution", dist, known - {""}) from e


def digest_of(dist: str) -> str:
    """Return the sha256 over the content of every file of a distribution.

    It covers the files RECORD lists and any other file inside their packages; for an editable
    installation, the source files of the modules that its entry points name. It does not cover
    files written by installers, nor byte code that Python compares with its source.

    Raises:
        UnknownNameError: If it is not installed.
        IntegrityError: If RECORD is missing, names a missing file, or leaves the site folder.
    """
    return _digest(_contents(dist, distribution(dist)))


def verified_digest(dist: str) -> str:
    """Return `digest_of`, if all files match RECORD; editable installations have none to match.

    Raises:
        UnknownNameError: If it is not installed.
        IntegrityError: Also if a file changed after the installation, or RECORD lacks it.
    """
    installed = distribution(dist)
    contents = _contents(dist, installed)
    if not is_editable(installed):
        _verify(dist, _rows(dist, installed), contents)
    return _digest(contents)


def _change(changes: Mapping[str, str | None], folder: Path | None) -> None:
    path = _path(folder)
    with WriterLock(path.parent).hold():
        atomic.remove_temporaries(path.parent)
        merged: dict[str, str | None] = {**trusted(folder=folder), **changes}
        digests = {dist: digest for dist, digest in sorted(merged.items()) if digest}
        atomic.write_struct(path, _Trusted(digests=digests))


def _path(folder: Path | None) -> Path:
    return (folder or config_folder()) / "trust.json"


def _digest(contents: Mapping[str, str]) -> str:
    return sha256_hex("".join(f"{name}\0{sha}\n" for name, sha in contents.items()).encode())


def _contents(dist: str, installed: metadata.Distribution) -> dict[str, str]:
    """Return relative name → sha256 of every file that the digest covers, sorted."""
    if is_editable(installed):
        files = dict(_editable_files(installed))
    else:
        files = dict(_recorded_files(dist, installed))
    return {name: _sha256(dist, path) for name, path in sorted(files.items())}


def _verify(dist: str, rows: Mapping[str, RecordRow], contents: Mapping[str, str]) -> None:
    """Compare contents with the rows of RECORD."""
    for name, sha in contents.items():
        recorded = rows[name].sha256 if name in rows else ""
        if recorded != sha:
            raise IntegrityError(
                f"{dist} cannot be trusted: {name}",
                expected=f"{short(recorded)}, as RECORD says"
                if recorded
                else "a row with a hash in RECORD",
                found=short(sha),
                hint=f"Reinstall it with 'pip install --force-reinstall --no-deps {dist}'.",
            )


def _recorded_files(dist: str, installed: metadata.Distribution) -> Iterator[tuple[str, Path]]:
    site = _site(installed)
    for name in _rows(dist, installed):
        path = PurePosixPath(name)
        by_installer = path.parent.name.endswith(".dist-info") and path.name in _INSTALLER
        if not (by_installer or _is_compared(site / name)):
            yield name, site / name
        if path.name == "__init__.py":  # a file next to it is importable even if it is not listed
            yield from _below(site / path.parent, site)


def _rows(dist: str, installed: metadata.Distribution) -> dict[str, RecordRow]:
    """Return the rows of RECORD inside the site folder, by normal path."""
    text = installed.read_text("RECORD")
    if not text:
        raise IntegrityError(f"{dist} cannot be trusted", expected="a RECORD", found="none")
    rows = parse_record(text.encode()).unwrap(f"{dist} cannot be trusted")
    site, inside = _site(installed), {}
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


def _site(installed: metadata.Distribution) -> Path:
    return Path(os.path.normpath(Path.cwd() / str(installed.locate_file(""))))


def _editable_files(installed: metadata.Distribution) -> Iterator[tuple[str, Path]]:
    """Yield the source files of an editable installation."""
    text = installed.read_text("entry_points.txt") or ""
    values = [value for group in _GROUPS for _, value in entries(text, group)]
    for module in sorted({value.partition(":")[0].partition(".")[0].strip() for value in values}):
        spec = importlib.util.find_spec(module)
        if spec is None:
            continue
        for place in spec.submodule_search_locations or ():
            yield from _below(Path(place), Path(place).parent)
        if spec.submodule_search_locations is None and spec.origin is not None:
            yield Path(spec.origin).name, Path(spec.origin)


def _below(folder: Path, root: Path) -> Iterator[tuple[str, Path]]:
    """Yield the files below a folder, each with its name relative to the root."""
    for path in (folder / name for name in files_below(folder)):
        if path.exists() and not _is_compared(path):
            yield path.relative_to(root).as_posix(), path


def _is_compared(path: Path) -> bool:
    """Return whether a file is byte code that Python runs only while its source is unchanged.

    Python runs any byte code without a source, and any that is marked as unchecked (PEP 552).
    """
    if path.suffix != ".pyc" or path.parent.name != "__pycache__":
        return False
    source = path.parent.parent / f"{path.name.partition('.')[0]}.py"
    try:
        head = read_head(path, limit=_PYC_HEAD)
    except OSError:
        return not path.exists()  # pip also lists byte code that was never written
    return source.is_file() and head[4:8] != _UNCHECKED


def _sha256(dist: str, path: Path) -> str:
    try:
        return sha256_hex(read_regular(path, limit=MAX_LARGE))
    except OSError as e:
        raise IntegrityError(
            f"{dist} cannot be trusted",
            expected=str(path),
            found=str(e.strerror),
            hint=f"Reinstall it with 'pip install --force-reinstall {dist}'.",
        ) from e
