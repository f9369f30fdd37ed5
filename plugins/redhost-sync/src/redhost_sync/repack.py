"""Pack an installed distribution into a wheel again, from its RECORD: equal files, equal bytes."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from redhost.commands.lazy import import_beside
from redhost.registry.errors import IntegrityError, MissingError
from redhost.registry.package.discover import canonical, header_lines
from redhost.registry.wheel.policy import RecordRow, parse_record

_OF_INSTALLERS = {"INSTALLER", "REQUESTED", "RECORD", "direct_url.json", "uv_cache.json"}
_WHEN, _LARGE, _FAST = (1980, 1, 1, 0, 0, 0), 2**22, 1
"""The time of every member; what is larger is packed at the fastest level."""


def repack(dist: str, folder: Path) -> Path:
    """Write the wheel of an installed distribution; a source tree is built.

    Args:
        dist: The distribution.
        folder: The folder for the wheel.

    Raises:
        MissingError: If it is not installed, nothing says which files it has, or it is a source
            tree and redhost-author, which builds one, is not installed.
        IntegrityError: If a file has changed since it was installed.
    """
    try:
        installed = metadata.distribution(dist)
    except metadata.PackageNotFoundError as e:
        hint = f"Install it: pip install {dist}."
        raise MissingError(f"{dist} is not installed", found="nothing to pack", hint=hint) from e
    record = installed.read_text("RECORD")
    if not record:
        hint = "Install it with pip or uv, which write one."  # a system's packages have none
        raise MissingError(f"{dist} cannot be packed", expected="a RECORD", found="none", hint=hint)
    rows = parse_record(record.encode()).unwrap(f"{dist} cannot be packed")
    if tree := _source_tree(installed, rows):
        needed_for = "a wheel of an editable installation"
        build = import_beside("pack", "redhost_author.wheels:build_wheel", needed_for=needed_for)
        return Path(build(tree, folder))
    path = folder / _file_name(installed)
    temporary = path.with_suffix(".tmp")
    with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
        members = dict(_members(installed, rows))
        listed = [_put(archive, n, members[n], dist=dist) for n in sorted(members)]
        info = f"{_info(installed).name}/RECORD"
        text = "".join(f"{line}\n" for line in [*listed, f"{info},,"])
        archive.writestr(_member(info, executable=False), text, zipfile.ZIP_DEFLATED)
    temporary.replace(path)
    return path


def _source_tree(installed: metadata.Distribution, rows: tuple[RecordRow, ...]) -> Path | None:
    """Return the source tree of an editable installation, which has no package of its own here."""
    with suppress(ValueError, KeyError, TypeError, AttributeError):
        recorded = json.loads(installed.read_text("direct_url.json") or "")
        inside = any(row.path.endswith("/__init__.py") for row in rows)
        if recorded["dir_info"]["editable"] is True and not inside:
            return Path(unquote(urlsplit(recorded["url"]).path))
    return None


def _info(installed: metadata.Distribution) -> Path:
    return Path(str(getattr(installed, "_path", "")))  # no public API gives it


def _file_name(installed: metadata.Distribution) -> str:
    """Return the name of a wheel: that of the metadata's folder, and the tags in WHEEL."""
    fields = list(header_lines(installed.read_text("WHEEL") or ""))
    tags = [value.strip().split("-") for key, value in fields if key == "tag"]
    build = next((value.strip() for key, value in fields if key == "build"), "")
    columns = [".".join(dict.fromkeys(c)) for c in zip(*tags, strict=True)]
    stem = _info(installed).name.removesuffix(".dist-info")
    parts = [stem, *filter(None, [build]), *(columns or ["py3", "none", "any"])]
    return f"{'-'.join(parts)}.whl"


def _members(
    installed: metadata.Distribution, rows: tuple[RecordRow, ...]
) -> Iterator[tuple[str, tuple[Path, RecordRow]]]:
    """Yield each file's name in the wheel, its path, and its row."""
    info = _info(installed)
    site, scripts = info.parent, Path(os.path.normpath(sysconfig.get_path("scripts")))
    data, made = f"{info.name.removesuffix('.dist-info')}.data", _scripts(installed)
    for row in rows:
        name, path = PurePosixPath(row.path), Path(os.path.normpath(site / row.path))
        if "__pycache__" in name.parts or name.suffix == ".pyc":
            continue
        if path.parent == info and name.name in _OF_INSTALLERS:
            continue
        if path.is_relative_to(site):
            yield path.relative_to(site).as_posix(), (path, row)
        elif path.parent == scripts:
            if path.stem not in made:  # the installer writes those
                yield f"{data}/scripts/{path.name}", (path, row)
        elif not path.exists():
            continue  # a manual page, say: small images are made without
        elif path.is_relative_to(sys.prefix):
            yield f"{data}/data/{path.relative_to(sys.prefix).as_posix()}", (path, row)
        else:
            raise IntegrityError(
                f"{installed.metadata['Name']} cannot be packed",
                expected=f"files below {sys.prefix}",
                found=row.path[:120],
            )


def _scripts(installed: metadata.Distribution) -> set[str]:
    groups = {"console_scripts", "gui_scripts"}
    return {point.name for point in installed.entry_points if point.group in groups}


def _member(name: str, *, executable: bool) -> zipfile.ZipInfo:
    member = zipfile.ZipInfo(name, _WHEN)
    member.external_attr = (0o100755 if executable else 0o100644) << 16
    return member


def _put(archive: zipfile.ZipFile, name: str, source: tuple[Path, RecordRow], *, dist: str) -> str:
    """Write a file, and return its row."""
    path, row = source
    try:
        data = path.read_bytes()
        executable = bool(path.stat().st_mode & 0o100)
    except OSError as e:
        raise _changed(dist, name, str(e.strerror)) from e
    digest = hashlib.sha256(data)
    if row.sha256 and digest.hexdigest() != row.sha256:
        raise _changed(dist, name, "other bytes than its RECORD says")
    if ".data/scripts/" in name and data.startswith(b"#!"):
        data = b"#!python\n" + data.partition(b"\n")[2]  # the installer writes its own there
        digest = hashlib.sha256(data)
    level = _FAST if len(data) > _LARGE else None
    member = _member(name, executable=executable)
    archive.writestr(member, data, zipfile.ZIP_DEFLATED, compresslevel=level)
    value = base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode()
    quoted = f'"{name}"' if "," in name else name
    return f"{quoted},sha256={value},{len(data)}"


def _changed(dist: str, name: str, found: str) -> IntegrityError:
    return IntegrityError(
        f"{dist} cannot be packed: {name}",
        expected="the file that was installed",
        found=found,
        hint=f"Reinstall it with 'pip install --force-reinstall --no-deps {canonical(dist)}'.",
    )
