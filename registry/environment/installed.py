"""Audit what plain ``pip install`` left: RECORD against the files; nothing is imported.

Installers do not compare a wheel's files with its RECORD, and copy the author's hashes. So this
audit finds files that were changed, added, or installed into another package's folder.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from urllib.parse import unquote, urlsplit

from msgspec.structs import replace

from ..atomic import read_regular
from ..errors import IntegrityError
from ..home.composition import Provenance
from ..package.checked import Checked, Violation, violations_of
from ..package.discover import MAX_METADATA, MAX_POINTS, Package
from ..package.readers import MAX_LARGE, read_file
from ..wheel.policy import (
    MAX_DEPTH,
    MAX_NAMES,
    NameOwners,
    RecordRow,
    WheelPolicy,
    check_entry_points,
    check_headers,
    check_names,
    check_record,
    check_top_level,
    is_plain,
    parse_record,
)


@violations_of
def audit_installed(
    package: Package,
    owners: NameOwners | None = None,
    *,
    read: Mapping[str, bytes] = MappingProxyType({}),
) -> tuple[Violation, ...]:
    """Check that an installed package matches its RECORD, and brought nothing else.

    Args:
        package: A package from `discover`. One that is not installed passes. For an editable one,
            which has no RECORD to compare with, only its name is checked.
        owners: The distributions that brought each top-level name; read again when None.
        read: Files beside its manifest, by plain name, that were read already: these bytes are
            compared, and the files are not read again.

    Returns:
        All violations.
    """
    if package.info is None or package.folder is None:
        return ()
    info, site = package.info, package.info.parent
    policy = WheelPolicy(dist=package.dist, module=package.module, info=info.name, installed=True)
    others = (owners or NameOwners()).others(site, package.module, dist=package.dist)
    taken = tuple(check_top_level(policy, others))
    if package.editable:
        return taken
    rows, names = read_record(info).or_refuse(), installed_files(package)
    headers, points = _text(info, "METADATA"), _text(info, "entry_points.txt", limit=MAX_POINTS)
    already_read = {f"{package.module}/{name}": data for name, data in read.items()}

    def content(name: str) -> Checked[bytes]:
        if name in already_read:
            return Checked(already_read[name])
        return read_file(site / name, missing="record_missing", limit=MAX_LARGE)

    return (
        *_beside(package, site),
        *taken,
        *check_names(policy, [*names, *(row.path for row in rows if is_plain(row.path))]),
        *headers.violations,
        *check_headers(policy, headers.value or ""),
        *points.violations,
        *check_entry_points(points.value or ""),
        *check_record(policy, rows, present=names, read=content),
    )


def require_removable(package: Package) -> None:
    """Refuse to let pip uninstall a package whose RECORD lists other packages' files.

    Raises:
        IntegrityError: Names the first such file, or reports that there is no RECORD.
    """
    if package.info is None:
        return
    info = package.info.name
    policy = WheelPolicy(dist=package.dist, module=package.module, info=info, installed=True)
    record = read_record(package.info)
    for violation in record.violations:
        raise IntegrityError(
            f"{package} cannot be uninstalled: {violation.field}",
            expected=violation.expected,
            found=violation.found,
            hint=f"Remove {package.info} and {package.folder} by hand, then try again.",
        )
    for violation in check_names(policy, installed_files(package)):
        if violation.code == "name_limit":  # pip would fail half-way
            raise violation.error(f"{package} cannot be uninstalled, remove it by hand")
    paths = [row.path for row in record.value or ()]
    plain = [path for path in paths if is_plain(path)]
    others = [path for path in paths if not is_plain(path)]
    others += [] if package.editable else [path for path in plain if not policy.owns(path)]
    if others:
        raise IntegrityError(
            f"{package} cannot be uninstalled: its RECORD lists files of others",
            expected=f"nothing beside {package.module!r}",
            found=repr(others[0][:120]),
            hint="pip would remove those too: take it out by hand.",
        )


def _beside(package: Package, site: Path) -> Iterator[Violation]:
    """Refuse an entry point that leads to a folder not covered by the package's RECORD."""
    if package.folder != site / package.module:
        expected = f"the folder {package.module!r} beside its metadata"
        hint = f"Reinstall it with 'pip install --force-reinstall --no-deps {package.dist}'."
        yield Violation("record_missing", package.module, expected, str(package.folder), hint)


def read_record(info: Path) -> Checked[tuple[RecordRow, ...]]:
    """Read the RECORD of a dist-info folder, without reading the files it lists."""
    return read_file(info / "RECORD", missing="record_absent", limit=MAX_METADATA).then(
        parse_record
    )


def _text(info: Path, name: str, *, limit: int = MAX_METADATA) -> Checked[str]:
    return read_file(info / name, missing="record_missing", limit=limit).then(
        lambda data: Checked(data.decode("utf-8", "replace"))
    )


def installed_files(package: Package) -> tuple[str, ...]:
    """Return every file of an installed package and its dist-info, relative to the site folder.

    Byte code is left out; a link to a folder counts as a file, and is not followed.
    """
    if package.info is None:
        return ()
    site = package.info.parent
    folders = (site / package.module, package.info)
    return tuple(sorted(f"{f.name}/{n}" for f in folders for n in files_below(f, limited=True)))


def files_below(folder: Path, *, limited: bool = False) -> Iterator[str]:
    """Yield every file below a folder, relative to it; links count as files and are not followed.

    Args:
        folder: The folder; if it cannot be read, it counts as empty.
        limited: Whether to leave out byte code and stop at the limits of a package: a folder nested
            too deep is yielded as a file, and iteration ends after one file too many.
    """
    waiting, files = [""], 0
    while waiting and not (limited and files > MAX_NAMES):
        below = waiting.pop()
        with suppress(OSError), os.scandir(folder / below) as entries:
            for entry in entries:
                if limited and (entry.name == "__pycache__" or files > MAX_NAMES):
                    continue
                shallow = not limited or below.count("/") < MAX_DEPTH
                if shallow and entry.is_dir(follow_symlinks=False):
                    waiting.append(f"{below}{entry.name}/")
                else:
                    files += 1
                    yield f"{below}{entry.name}"


def installed_wheel(package: Package, digest: str) -> Provenance:
    """Return where a package came from, as its installer says: a wheel that it was given (PEP 610).

    Args:
        package: The package; of one that is not installed, or was given by name, nothing is known.
        digest: The digest of its content.
    """
    origin = Provenance(dist=package.dist, version=package.version, digest=digest)
    if package.info is None:
        return origin
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        recorded = json.loads(
            read_regular(package.info / "direct_url.json", limit=MAX_METADATA),
        )
        url, hashes = urlsplit(recorded["url"]), recorded["archive_info"].get("hashes", {})
        place, sha256 = unquote(url.path), hashes.get("sha256", "")
        if url.scheme == "file" and place.endswith(".whl") and place.isprintable():
            is_digest = re.fullmatch("[0-9a-f]{64}", sha256)
            return replace(origin, source=place, wheel=sha256 if is_digest else "")
    return origin
