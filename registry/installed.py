"""The audit of what plain ``pip install`` left: RECORD against the files, nothing imported.

Installers do not compare a wheel's files with its RECORD, and keep the author's hashes; so a file
that was changed, added or brought for another package is seen here.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from .discover import Package, groups
from .errors import IntegrityError
from .footprint import file_names
from .owners import Owners
from .record import is_plain, parse_record
from .scope import Scope, check_entry_points, check_names, check_record, check_top_level
from .sources import read_file
from .violations import Violation

__all__ = ["audit_installed", "require_removable"]

MAX_METADATA = 2**22
MAX_INSTALLED = 2 * 2**30
"""The largest file a backbone carries."""


def audit_installed(package: Package, owners: Owners | None = None) -> tuple[Violation, ...]:
    """Check that an installed package is what its RECORD says, and brought nothing else.

    Args:
        package: What `discover` found. One that is not installed, or is editable, has no RECORD
            to compare with and passes.
        owners: Who brought which top-level name; read anew when None.

    Returns:
        Everything that is wrong.
    """
    if package.info is None or package.editable or package.folder is None:
        return ()
    info, site = package.info, package.info.parent
    scope = Scope(dist=package.dist, module=package.module, info=info.name, installed=True)
    data = read_file(info / "RECORD", missing="record_absent", limit=MAX_METADATA)
    rows = data if isinstance(data, Violation) else parse_record(data)
    if isinstance(rows, Violation):
        return (rows,)
    names = file_names(package)
    others = (owners or Owners()).others(site, package.module, dist=package.dist)

    def read(name: str) -> bytes | Violation:
        return read_file(site / name, missing="record_missing", limit=MAX_INSTALLED)

    return (
        *_beside(package, site),
        *check_names(scope, [*names, *(row.path for row in rows if is_plain(row.path))]),
        *check_top_level(scope, others),
        *check_entry_points(_groups(info)),
        *check_record(scope, rows, present=names, read=read),
    )


def require_removable(package: Package) -> None:
    """Refuse to let pip uninstall a package whose RECORD lists files of others.

    Raises:
        IntegrityError: Naming the first of them, or that there is no RECORD to go by.
    """
    if package.info is None:
        return
    scope = Scope(dist=package.dist, module=package.module, info=package.info.name, installed=True)
    data = read_file(package.info / "RECORD", missing="record_absent", limit=MAX_METADATA)
    rows = data if isinstance(data, Violation) else parse_record(data)
    if isinstance(rows, Violation):
        raise IntegrityError(
            f"{package} cannot be uninstalled: {rows.field}",
            expected=rows.expected,
            found=rows.found,
            hint=f"Remove {package.info} and {package.folder} by hand, then try again.",
        )
    plain = [row.path for row in rows if is_plain(row.path)]
    others = [row.path for row in rows if row.path not in plain]
    others += [] if package.editable else [path for path in plain if not scope.owns(path)]
    if others:
        raise IntegrityError(
            f"{package} cannot be uninstalled: its RECORD lists files of others",
            expected=f"nothing beside {package.module!r}",
            found=repr(others[0][:120]),
            hint="pip would remove those too: take it out by hand.",
        )


def _beside(package: Package, site: Path) -> Iterator[Violation]:
    """Refuse an entry point that leads to a folder which its RECORD cannot speak for."""
    if package.folder != site / package.module:
        expected = f"the folder {package.module!r} beside its metadata"
        hint = f"Reinstall it with 'pip install --force-reinstall --no-deps {package.dist}'."
        yield Violation("record_missing", package.module, expected, str(package.folder), hint)


def _groups(info: Path) -> tuple[str, ...]:
    data = read_file(info / "entry_points.txt", missing="record_missing", limit=MAX_METADATA)
    return () if isinstance(data, Violation) else groups(data.decode("utf-8", "replace"))
