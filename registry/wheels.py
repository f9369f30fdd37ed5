"""Read a package out of a wheel, in memory, without installing it.

This finds the package's own files and nothing else; auditing the rest of an archive before an
installation (RECORD, ``.pth`` files, foreign modules) is a separate step.
"""

from __future__ import annotations

import lzma
import struct
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from .discover import MANIFESTS, Kind, Package, entries, headers
from .errors import UsageError
from .integrity import MAX_FILE
from .violations import Violation

__all__ = ["Wheel", "build_wheel", "read_wheel"]

MAX_MEMBERS = 10_000
MAX_TOTAL = 512 * 2**20
BROKEN = (
    EOFError,
    KeyError,
    NotImplementedError,
    OSError,
    RuntimeError,
    ValueError,
    lzma.LZMAError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)
"""What zipfile raises on archives that are none, or that are damaged inside."""

_HINT = "Build the wheel again, or get it again from where it came."


@dataclass(frozen=True)
class Wheel:
    """An expert or backbone in a wheel.

    Attributes:
        package: Who it says it is; ``folder`` is None.
        files: The bytes beside its manifest, by plain file name.
    """

    package: Package
    files: Mapping[str, bytes]


class _WheelError(ValueError):
    """The archive cannot be what it should be; becomes a violation at the boundary."""

    def __init__(self, expected: str, found: str) -> None:
        super().__init__(expected)
        self.expected, self.found = expected, found


def read_wheel(path: Path) -> Wheel | Violation:
    """Read the files of the expert or backbone that a wheel holds.

    Args:
        path: The ``.whl`` file.

    Returns:
        Its files, to be passed to `read_expert` or `read_backbone`; or what is wrong with it.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return _read(archive)
    except _WheelError as e:
        return Violation("package_files", path.name, e.expected, e.found, _HINT)
    except BROKEN as e:
        return Violation("package_files", path.name, "a wheel", str(e) or "another file", _HINT)


def build_wheel(project: Path, out: Path) -> Path:
    """Build the wheel of a project.

    Args:
        project: The project's folder, with a hatchling pyproject.toml.
        out: Where the wheel goes.

    Raises:
        UsageError: If the project cannot be built.
    """
    from hatchling.builders.wheel import WheelBuilder

    try:
        builder = WheelBuilder(str(project))
        return Path(next(iter(builder.build(directory=str(out), versions=["standard"]))))
    except (OSError, ValueError, TypeError, KeyError) as e:
        raise UsageError(f"{project} cannot be built", found=str(e)) from e


def _read(archive: zipfile.ZipFile) -> Wheel:
    members = _members(archive)
    info = _only([n for n in members if n.endswith(".dist-info/entry_points.txt")])
    metadata = str(PurePosixPath(info).with_name("METADATA"))
    if metadata not in members:
        raise _WheelError("METADATA beside the entry points", "none")
    fields = headers(_text(archive, members[metadata]))
    kind, module = _provided(_text(archive, members[info]))
    files = {
        PurePosixPath(name).name: _bytes(archive, member)
        for name, member in members.items()
        if str(PurePosixPath(name).parent) == module and not name.endswith((".py", "/"))
    }
    return Wheel(Package(kind, fields["name"], fields["version"], module, None, False), files)


def _members(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """Return name → member, having looked at counts and sizes before unpacking anything."""
    members = archive.infolist()
    if len(members) > MAX_MEMBERS or sum(m.file_size for m in members) > MAX_TOTAL:
        raise _WheelError(f"at most {MAX_MEMBERS:,} files and {MAX_TOTAL:,} bytes", "more")
    found: dict[str, zipfile.ZipInfo] = {}
    for member in members:
        parts = PurePosixPath(member.filename).parts
        if member.filename.startswith("/") or ".." in parts or "\\" in member.filename:
            raise _WheelError("names inside the wheel", repr(member.filename[:80]))
        if member.filename in found:
            raise _WheelError("every name once", f"{member.filename[:80]!r} twice")
        found[member.filename] = member
    return found


def _only(names: list[str]) -> str:
    if len(names) != 1:
        raise _WheelError("one .dist-info with entry points", str(len(names)))
    return names[0]


def _provided(text: str) -> tuple[Kind, str]:
    """Return what the wheel offers, and the top-level package that holds it."""
    found: list[tuple[Kind, str]] = [
        (kind, value) for kind in MANIFESTS for _, value in entries(text, f"redhost.{kind}s")
    ]
    if len(found) != 1 or not found[0][1].isidentifier():
        raise _WheelError("one entry point that names a top-level package", repr(found))
    return found[0]


def _text(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> str:
    return _bytes(archive, member).decode("utf-8")


def _bytes(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    """Unpack one member; a large one is refused by its size, and a size that lies by unpacking."""
    if member.file_size > MAX_FILE:
        raise _WheelError(f"files of at most {MAX_FILE:,} bytes", member.filename[:80])
    with archive.open(member) as file:
        data = file.read(MAX_FILE + 1)
    if len(data) > MAX_FILE:
        raise _WheelError(f"files of at most {MAX_FILE:,} bytes", member.filename[:80])
    return data
