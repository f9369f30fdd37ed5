"""Which plugins the user trusts, by the digest of their code: recorded per user, not per project.

A plugin that has changed since is no longer trusted. Python has no sandbox: a trusted plugin can do
whatever the user can. Plugins of this project that the user installed need no record of their own
while they are what this redhost was released with, or a part of the source tree that it runs from.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib import metadata
from importlib.machinery import EXTENSION_SUFFIXES, all_suffixes
from pathlib import Path, PurePosixPath
from typing import Literal

from msgspec import Struct
from msgspec.json import decode

from .. import atomic
from ..atomic import read_regular
from ..errors import IntegrityError, PluginError, SettingsError, UnknownNameError, short
from ..home.locks import WriterLock
from ..package.discover import (
    EntryPointInfo,
    canonical,
    entries,
    is_editable,
    plugin_entry_points,
)
from ..package.readers import MAX_LARGE
from ..package.safetensors_check import sha256_hex
from ..wheel.policy import RecordRow, parse_record
from .importing import find_spec
from .installed import files_below

_INSTALLER = {"INSTALLER", "RECORD", "REQUESTED", "direct_url.json", "uv_cache.json"}
"""Files of a dist-info that differ between machines for the same wheel."""

_PYC_HEAD, _UNCHECKED = 16, b"\x01\0\0\0"
"""Header bytes of a .pyc; the flags of byte code that Python runs without checking its source."""

_GROUPS = ("redhost.plugins", "redhost.commands")

RELEASED = Path(__file__).with_name("released.json")
"""Plugin of this project → the digest that this redhost was released with; written into its wheel
by ``tools/release.py``, and an empty object in the source."""


class _Trusted(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    schema: Literal["redhost.trust/1"] = "redhost.trust/1"
    digests: dict[str, str] = {}


class Contents(Struct, frozen=True, kw_only=True, dict=True):
    """The content of a distribution, as it was read.

    Attributes:
        by_name: The sha256 of each file, by its name relative to the site folder, sorted.
        files: The path of each, by the same names.
    """

    by_name: Mapping[str, str]
    files: Mapping[str, Path]

    @cached_property
    def digest(self) -> str:
        """The sha256 over all names and contents."""
        return sha256_hex("".join(f"{n}\0{sha}\n" for n, sha in self.by_name.items()).encode())

    @property
    def by_path(self) -> dict[str, str]:
        """The sha256 of each file by its real path."""
        return {os.path.realpath(path): self.by_name[name] for name, path in self.files.items()}


class Agreement(Struct, frozen=True, kw_only=True):
    """The content of a trusted distribution.

    Attributes:
        contents: What was read, and may run.
        reason: Why it needs no record of the user's; None if it is what the user recorded.
    """

    contents: Contents
    reason: str | None = None


def config_folder(env: Mapping[str, str] = os.environ) -> Path:
    """Return the user's folder of settings; ``REDHOST_CONFIG`` overrides it.

    Raises:
        SettingsError: If the user has no home folder.
    """
    if env.get("REDHOST_CONFIG"):
        return Path(env["REDHOST_CONFIG"])
    from platformdirs import user_config_dir

    try:
        return Path(user_config_dir("redhost"))
    except RuntimeError as e:  # a container whose user has neither a name nor a HOME
        raise SettingsError(f"no folder for settings: {e}", hint="Set REDHOST_CONFIG.") from e


def trusted(*, folder: Path | None = None) -> dict[str, str]:
    """Return distribution → digest of the content the user agreed to run.

    Args:
        folder: The folder of ``trust.json``; the user's own folder when None.

    Raises:
        StoreError: If the record is invalid or damaged.
    """
    record = atomic.read_struct(
        _path(folder), _Trusted, hint="Remove it, then trust again what should be."
    )
    return dict(record.digests) if record else {}


def is_trusted(dist: str, *, folder: Path | None = None) -> bool:
    """Return whether a plugin's content is what the user agreed to."""
    return agreed(find(dist), folder=folder) is not None


def agreed(plugin: EntryPointInfo, *, folder: Path | None = None) -> Agreement | None:
    """Return a plugin's content if it may run, else None.

    It may if its digest is the one that the user recorded, or the one that this redhost was
    released with, or if all of it lies in the source tree that this redhost runs from.

    Raises:
        IntegrityError: If another distribution has its name, or as from `digest_of`.
    """
    plugin.require_only()
    dist = canonical(plugin.dist)
    digest, project = trusted(folder=folder).get(dist), project_of(dist)
    released = decode(RELEASED.read_bytes(), type=dict[str, str]).get(dist)
    if digest is None and released is None and project is None:
        return None
    contents = _contents(plugin)
    if contents.digest == digest:
        return Agreement(contents=contents)
    if contents.digest == released:
        return Agreement(contents=contents, reason="this redhost was released with it")
    paths = contents.by_path
    if project and paths and all(Path(p).is_relative_to(project) for p in paths):
        return Agreement(contents=contents, reason="it lies in the source tree of this redhost")
    return None


def require_agreed(providers: Mapping[str, str]) -> None:
    """Check that plugins are installed in these very builds, and may run; none is imported.

    Args:
        providers: Distribution → digest, as recorded in a composition.

    Raises:
        PluginError: If one is gone, not trusted, or another build.
    """
    may_run = {
        dist: agreement.contents.digest
        for point in plugin_entry_points("redhost.plugins")
        if (dist := canonical(point.dist)) in providers and (agreement := agreed(point))
    }
    if lost := sorted(d for d, digest in providers.items() if may_run.get(d) != digest):
        raise PluginError(
            f"plugin {lost[0]!r}, which made a part of that generation, is gone, is not trusted, "
            "or is another build",
            hint=f"Run 'pip install {lost[0]}', of that build, and 'redhost trust {lost[0]}'.",
        )


def source_tree() -> Path | None:
    """Return the source tree that this redhost was imported from; None if it was installed."""
    import_folder = Path(os.path.realpath(Path(__file__).parents[3]))
    tree = Path(os.path.realpath(__file__)).parents[2]
    return tree if import_folder == tree / "src" else None  # a wheel has no src/


def project_of(dist: str) -> Path | None:
    """Return the folder of a plugin of this project in the `source_tree`, if it is there."""
    tree = source_tree()
    project = tree / "plugins" / dist if tree and dist.startswith("redhost-") else None
    return project if project and (project / "pyproject.toml").is_file() else None


def trust(dist: str, *, folder: Path | None = None) -> str:
    """Record that the user agrees to run a plugin as it is now; return its `digest_of`.

    Raises:
        UnknownNameError: If it is not installed.
        IntegrityError: If any of its files differs from its RECORD, or RECORD lacks it; an editable
            installation has none to match.
    """
    plugin = find(dist)
    contents, installed = _contents(plugin), metadata.Distribution.at(plugin.info)
    if not is_editable(installed):
        _verify(plugin.dist, _rows(plugin.dist, installed), contents.by_name)
    _change({canonical(dist): contents.digest}, folder)
    return contents.digest


def distrust(dist: str, *, folder: Path | None = None) -> None:
    """Remove the trust in a distribution."""
    _change({canonical(dist): None}, folder)


def find(dist: str) -> EntryPointInfo:
    """Return an installed plugin's first entry point, with the metadata folder it was read from.

    Raises:
        UnknownNameError: If it is not installed.
        IntegrityError: If two distributions have that name.
    """
    plugins = plugin_entry_points("redhost.plugins")
    plugin = next((p for p in plugins if canonical(p.dist) == canonical(dist)), None)
    if plugin is None:
        raise UnknownNameError("plugin distribution", dist, {p.dist for p in plugins})
    plugin.require_only()
    return plugin


def digest_of(dist: str) -> str:
    """Return the sha256 over the content of every file of a plugin's distribution.

    It covers the files RECORD lists, any other file inside their packages, and those that Python
    would import in their place; for an editable installation, the source files of the modules that
    its entry points name. It does not cover files written by installers, nor byte code that has a
    source: `importing` does not use any.

    Raises:
        UnknownNameError: If it is not installed.
        IntegrityError: If RECORD is missing, names a missing file, or leaves the site folder.
    """
    return _contents(find(dist)).digest


def wheel_digest(members: Mapping[str, bytes]) -> str:
    """Return what `digest_of` is for a plugin that was installed from a wheel of these files."""
    names = sorted(name for name in members if not _by_installer(name))
    by_name = {name: sha256_hex(members[name]) for name in names}
    return Contents(by_name=by_name, files={}).digest


def files_of(plugin: EntryPointInfo) -> dict[str, Path]:
    """Return every file that the digest covers, by its name relative to the site folder, sorted.

    Raises:
        IntegrityError: If RECORD is missing, or leaves the site folder.
    """
    installed = metadata.Distribution.at(plugin.info)
    if is_editable(installed):
        return dict(sorted(_editable_files(installed)))
    entry_points = plugin.info / "entry_points.txt"  # whether RECORD lists it or not
    name = f"{plugin.info.name}/{entry_points.name}"
    return dict(sorted([(name, entry_points), *_recorded_files(plugin.dist, installed)]))


def _change(changes: Mapping[str, str | None], folder: Path | None) -> None:
    path = _path(folder)
    with WriterLock(path.parent).hold():
        atomic.remove_temporaries(path.parent)
        merged = sorted({**trusted(folder=folder), **changes}.items())
        atomic.write_struct(path, _Trusted(digests={dist: sha for dist, sha in merged if sha}))


def _path(folder: Path | None) -> Path:
    return (folder or config_folder()) / "trust.json"


def _contents(plugin: EntryPointInfo) -> Contents:
    files = files_of(plugin)
    return Contents(
        by_name={name: _sha256(plugin.dist, path) for name, path in files.items()}, files=files
    )


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
        if not (_by_installer(name) or _is_compared(site / name)):
            yield name, site / name
        if path.suffix == ".py":
            yield from _preferred(site / path.with_suffix(""), site)
        if path.name == "__init__.py":  # a file next to it is importable even if it is not listed
            yield from _below(site / path.parent, site)


def _by_installer(name: str) -> bool:
    path = PurePosixPath(name)
    return path.parent.name.endswith(".dist-info") and path.name in _INSTALLER


def _preferred(module: Path, site: Path) -> Iterator[tuple[str, Path]]:
    """Yield the files that Python would import in place of a module's source."""
    names = [f"{module.name}{suffix}" for suffix in EXTENSION_SUFFIXES]
    names += [f"{module.name}/__init__{suffix}" for suffix in all_suffixes()]
    for path in filter(Path.exists, (module.parent / name for name in names)):
        yield path.relative_to(site).as_posix(), path


def _rows(dist: str, installed: metadata.Distribution) -> dict[str, RecordRow]:
    """Return the rows of RECORD inside the site folder, by normal path."""
    import sysconfig

    text = installed.read_text("RECORD")
    if not text:
        raise IntegrityError(
            f"{dist} cannot be trusted",
            expected="a RECORD",
            found="none",
            hint="Install it with pip, which writes one.",  # a system's packages have none
        )
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
        spec = find_spec(module)
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
        head = read_regular(path, limit=_PYC_HEAD, whole=False)
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
