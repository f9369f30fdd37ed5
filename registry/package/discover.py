"""Find installed packages from their metadata alone; nothing that is found is ever imported.

Entry points are read from each distribution's ``entry_points.txt`` directly:
``importlib.metadata.entry_points()`` raises for all packages when one file is malformed, and
parsing METADATA with the email parser costs more than everything else together.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from ..atomic import read_regular
from ..errors import IntegrityError, UsageError, one_line

Kind = Literal["expert", "backbone"]

MANIFESTS: dict[Kind, str] = {"expert": "expert.json", "backbone": "backbone.json"}


MAX_METADATA, MAX_POINTS = 2**22, 2**18
"""The most bytes of a file in a dist-info, and of its entry_points.txt."""

MAX_COMMANDS = 64
"""Most plugins, or commands, of a distribution; the others are not there."""

MAX_OFFERS = 16
"""The most entry points of one kind that a distribution may have."""

MAX_HEADER = 500
"""The most characters of a name, a version or a summary."""

MAX_LINES = 2000
"""The most lines of entry points, and of headers, that are read of a distribution. Of these there
may be any number: one wheel brings as many metadata folders as it likes."""

_LINES = re.compile("[^\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]+")  # as `str.splitlines`
_SEPARATORS = re.compile(r"[-_.]+")
_HEADERS = re.compile(r"([^\r\n]*)(?:\r\n|\r|\n|\Z)")


class Package(Struct, frozen=True):
    """An installed expert or backbone, as described by its metadata.

    Attributes:
        kind: Whether it is an expert or a backbone.
        dist: The distribution's name, e.g. ``red-expert-range1``.
        version: The distribution's version.
        module: The top-level package its entry point names.
        folder: The folder of manifest and weights; None if it cannot be determined.
        editable: Whether it was installed with ``pip install -e`` (PEP 610).
        info: Its dist-info folder; None if it is not installed.
    """

    kind: Kind
    dist: str
    version: str
    module: str
    folder: Path | None
    editable: bool
    info: Path | None = None

    def __str__(self) -> str:
        return f"{self.dist} {self.version}".rstrip()


class EntryPointInfo(Struct, frozen=True):
    """A plugin's entry point, not yet imported.

    Attributes:
        name: The entry point's name.
        value: The module that it names, and what in it.
        dist: The distribution's name.
        version: The distribution's version.
        summary: The distribution's summary.
        info: The metadata folder that all of this was read from.
        rivals: Other metadata folders with the same distribution name.
    """

    name: str
    value: str
    dist: str
    version: str
    summary: str
    info: Path
    rivals: tuple[Path, ...] = ()

    def require_only(self) -> None:
        """Refuse a plugin whose distribution has the name of another one.

        Raises:
            IntegrityError: Naming all their folders.
        """
        require_one(self.dist, (self.info, *self.rivals))


def require_one(dist: str, infos: Collection[Path | None]) -> None:
    """Refuse a distribution's name that several metadata folders have: which is meant is unknown.

    Raises:
        IntegrityError: Naming all the folders.
    """
    if len(infos) > 1:
        raise IntegrityError(
            f"several installed packages call themselves {dist}",
            expected="one metadata folder",
            found=" and ".join(sorted(map(str, infos))),
            hint="Uninstall one, or remove its folder by hand.",
        )


def discover(kind: Kind) -> tuple[Package, ...]:
    """Return every installed package that offers an expert or a backbone, sorted by module."""
    return discover_all((kind,))[kind]


def discover_all(
    kinds: Collection[Kind] = tuple(MANIFESTS),
) -> Mapping[Kind, tuple[Package, ...]]:
    """Return the result of `discover` for some kinds, reading each distribution once."""
    packages: dict[Kind, dict[Package, None]] = {kind: {} for kind in kinds}
    for dist, info, text, fields in _distributions([f"redhost.{kind}s" for kind in kinds]):
        name, version, editable = fields["name"], fields["version"], is_editable(dist)
        for kind in kinds:
            offers = (value for _, value in entries(text, f"redhost.{kind}s"))
            # One more than allowed, which the audit of each of them reports.
            for value in islice(offers, MAX_OFFERS + 1):
                plain = value.isidentifier() and len(value) <= MAX_HEADER
                folder = _folder(dist, value, MANIFESTS[kind]) if plain else None
                module = value if plain else one_line(value[:MAX_HEADER])
                packages[kind][Package(kind, name, version, module, folder, editable, info)] = None
    return {
        kind: tuple(sorted(of, key=lambda p: (p.module, p.dist))) for kind, of in packages.items()
    }


def plugin_entry_points(group: str) -> tuple[EntryPointInfo, ...]:
    """Return the entry points of a group that names code, without importing any of it."""
    points, infos = list[EntryPointInfo](), defaultdict[str, set[Path]](set)
    for _, info, text, fields in _distributions((group,)):
        infos[canonical(fields["name"])].add(info)
        points += (
            EntryPointInfo(
                name, value, fields["name"], fields["version"], fields.get("summary", ""), info
            )
            for name, value in islice(entries(text, group), MAX_COMMANDS)
        )
    marked = {replace(p, rivals=tuple(infos[canonical(p.dist)] - {p.info})) for p in points}
    return tuple(sorted(marked, key=lambda point: (point.name, point.dist, point.info)))


def from_folder(path: Path) -> Package:
    """Describe a package that is not installed.

    Args:
        path: A folder that holds a manifest, or a project whose ``src/<module>/`` holds one.

    Returns:
        The package. Without any manifest it is an expert whose files will be reported missing.

    Raises:
        UsageError: If there is no such folder.
    """
    if not path.is_dir():
        raise UsageError("nothing to check", expected="a folder", found=str(path))
    project = _project(path)
    for folder in (path, *sorted(path.glob("src/*"))):
        for kind, name in MANIFESTS.items():
            if (folder / name).is_file():
                return Package(kind, *project, folder.resolve().name, folder, False)
    return Package("expert", *project, path.resolve().name, path, False)


def canonical(dist: str) -> str:
    """Return a distribution's name in normalised spelling, for comparison (PEP 503)."""
    return _SEPARATORS.sub("-", dist).lower()


def entries(text: str, group: str | None = None) -> Iterator[tuple[str, str]]:
    """Yield name and value of each entry point of a group, or of all; skip unreadable lines."""
    section = ""
    for match in islice(_LINES.finditer(text), MAX_LINES):
        line = match[0].strip()
        if line.startswith("["):
            section = line.strip("[]").strip()
        elif group in {None, section} and "=" in line and not line.startswith(("#", ";")):
            name, _, value = line.partition("=")
            yield one_line(name.strip()), value.partition("[")[0].strip()  # not its extras


def groups(text: str) -> tuple[str, ...]:
    """Return the groups of entry points that a text declares, in order."""
    return tuple(
        line.strip("[]").strip()
        for line in map(str.strip, text.splitlines())
        if line.startswith("[")
    )


def headers(text: str) -> dict[str, str]:
    """Read name, version and summary from the text of METADATA (or an egg-info's PKG-INFO).

    They are shown before anything is checked, so terminal codes in them are escaped.
    """
    fields = {"name": "", "version": ""}
    for key, value in islice(header_lines(text), MAX_LINES):
        if key in {"name", "version", "summary"}:
            line = one_line(value.strip()[:MAX_HEADER])
            fields[key] = fields.get(key) or line  # the first counts, as in pip
    return fields


def header_lines(text: str) -> Iterator[tuple[str, str]]:
    """Yield key, in lower case, and value of each header of METADATA, as pip would parse it."""
    for match in _HEADERS.finditer(text):  # splitlines would split at other characters too
        key, colon, value = (line := match[1]).partition(":")
        if not line:
            return
        if colon:
            yield key.lower(), value


def is_editable(dist: metadata.Distribution) -> bool:
    """Return whether a distribution was installed with ``pip install -e`` (PEP 610).

    If its modules lie next to its metadata it is not, whatever its metadata claim: a wheel may
    contain that file, and could then avoid the check against RECORD.
    """
    try:
        claimed = json.loads(_text(dist, "direct_url.json"))["dir_info"]["editable"] is True
    except (ValueError, KeyError, TypeError, RecursionError):
        return False
    if not claimed:
        return False
    values = [value for _, value in entries(_text(dist, "entry_points.txt"))]
    modules = {value.partition(":")[0].partition(".")[0].strip() for value in values} - {""}
    places = (dist.locate_file(name) for m in modules for name in (m, f"{m}.py"))
    # Not Path.exists: it raises if the name is too long.
    return not any(os.path.exists(str(place)) for place in places)  # noqa: PTH110


def _distributions(
    groups: Collection[str],
) -> Iterator[tuple[metadata.Distribution, Path, str, dict[str, str]]]:
    """Yield each distribution that mentions a group: its folder, entry points and headers.

    Each file is read once: a thousand packages are a few thousand files. A folder that the path
    leads to twice counts once. Of two folders on the path that have a distribution of one name,
    Python imports the first's, and so does this, as in an environment on top of another. But an
    egg-info, which a build leaves beside its source, comes after what was installed. Two of one
    name in one folder are both yielded, and fail.
    """
    seen, places = set[str](), dict[str, Path]()
    # No public API gives the metadata's folder.
    paths = {dist: str(getattr(dist, "_path", "")) for dist in metadata.distributions()}
    for dist, path in sorted(paths.items(), key=lambda item: item[1].endswith(".egg-info")):
        text = _text(dist, "entry_points.txt")
        if not any(group in text for group in groups):
            continue
        info = Path(path)
        if (place := os.path.realpath(info)) in seen or info.name.startswith("~"):
            continue  # pip moves a folder to such a name, and may be stopped before removing it
        seen.add(place)
        fields = headers(_text(dist, "METADATA") or _text(dist, "PKG-INFO"))
        stem, _, version = info.stem.partition("-")
        if not stem or canonical(fields["name"]) != canonical(stem):  # pip goes by the folder
            fields |= {"name": one_line(stem or info.name), "version": one_line(version)}
        if places.setdefault(canonical(fields["name"]), info.parent) == info.parent:
            yield dist, info, text, fields


def beginning_of(path: str, limit: int = MAX_POINTS) -> str:
    """Return the beginning of a file of metadata, as text; empty if it is unreadable."""
    try:
        return read_regular(path, limit=limit, whole=False).decode("utf-8", "replace")
    except (OSError, ValueError):  # a path with a null byte is a ValueError
        return ""


def _text(dist: metadata.Distribution, name: str) -> str:
    # Takes half as long as `read_text`; nothing inside an archive is a package of ours.
    return beginning_of(f"{getattr(dist, '_path', '')}/{name}")


def _folder(dist: metadata.Distribution, module: str, manifest: str) -> Path | None:
    """Find a top-level package's folder; `find_spec` on a top-level name imports nothing."""
    try:
        folder = Path(str(dist.locate_file(module)))
        if folder.is_dir():
            return folder
        spec = importlib.util.find_spec(module)
        places = [Path(place) for place in (spec and spec.submodule_search_locations) or ()]
        return next((p for p in places if (p / manifest).is_file()), next(iter(places), None))
    except (ImportError, OSError, ValueError, AttributeError):
        return None


def _project(path: Path) -> tuple[str, str]:
    """Return name and version of the project a folder belongs to, as far as it declares them."""
    import tomllib

    name = path.resolve().name
    try:
        project = tomllib.loads((path / "pyproject.toml").read_text("utf-8"))["project"]
        return str(project.get("name", name)), str(project.get("version", ""))
    except (OSError, ValueError, KeyError, AttributeError):
        return name, ""
