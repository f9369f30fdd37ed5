"""Find installed packages from their metadata alone; nothing that is found is ever imported.

Entry points are read from each distribution's ``entry_points.txt`` directly:
``importlib.metadata.entry_points()`` raises for all packages when one file is malformed, and
parsing METADATA with the email parser costs more than everything else together.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from ..atomic import read_regular
from ..errors import UsageError, one_line

Kind = Literal["expert", "backbone"]

MANIFESTS: dict[Kind, str] = {"expert": "expert.json", "backbone": "backbone.json"}


MAX_METADATA = 2**22
"""The most bytes of a file in a dist-info."""


@dataclass(frozen=True)
class Package:
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


@dataclass(frozen=True)
class EntryPointInfo:
    """A plugin's entry point, not yet imported."""

    name: str
    value: str
    dist: str
    version: str
    summary: str


def discover(kind: Kind) -> tuple[Package, ...]:
    """Return every installed package that offers an expert or a backbone, sorted by module."""
    return discover_all((kind,))[kind]


def discover_all(
    kinds: Collection[Kind] = tuple(MANIFESTS),
) -> Mapping[Kind, tuple[Package, ...]]:
    """Return the result of `discover` for some kinds, reading each distribution once."""
    packages: dict[Kind, list[Package]] = {kind: [] for kind in kinds}
    for dist, text, fields in _distributions([f"redhost.{kind}s" for kind in kinds]):
        path = getattr(dist, "_path", None)  # no public API gives the metadata's folder
        info = None if path is None else Path(path)
        name, version = fields["name"], fields["version"]
        for kind in kinds:
            for _, value in entries(text, f"redhost.{kind}s"):
                folder = _folder(dist, value, MANIFESTS[kind]) if value.isidentifier() else None
                package = Package(kind, name, version, value, folder, is_editable(dist), info)
                packages[kind].append(package)
    return {
        kind: tuple(sorted(of, key=lambda p: (p.module, p.dist))) for kind, of in packages.items()
    }


def plugin_entry_points(
    group: Literal["redhost.plugins", "redhost.commands"],
) -> tuple[EntryPointInfo, ...]:
    """Return the entry points of a group of plugins, without importing any of them."""
    points = (
        EntryPointInfo(name, value, fields["name"], fields["version"], fields.get("summary", ""))
        for _, text, fields in _distributions((group,))
        for name, value in entries(text, group)
    )
    return tuple(sorted(points, key=lambda info: (info.name, info.dist)))


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
    return re.sub(r"[-_.]+", "-", dist).lower()


def entries(text: str, group: str | None = None) -> Iterator[tuple[str, str]]:
    """Yield name and value of each entry point of a group, or of all; skip unreadable lines."""
    section = ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):
            section = line.strip("[]").strip()
        elif group in {None, section} and "=" in line and not line.startswith(("#", ";")):
            name, _, value = line.partition("=")
            yield one_line(name.strip()), value.strip()


def groups(text: str) -> tuple[str, ...]:
    """Return the groups of entry points that a text declares, in order."""
    lines = map(str.strip, text.splitlines())
    return tuple(line.strip("[]").strip() for line in lines if line.startswith("["))


def headers(text: str) -> dict[str, str]:
    """Read name, version and summary from the text of METADATA (or an egg-info's PKG-INFO).

    They are shown before anything is checked, so terminal codes in them are escaped.
    """
    fields = {"name": "", "version": ""}
    for key, value in header_lines(text):
        if key in {"name", "version", "summary"}:
            fields[key] = fields.get(key) or one_line(value.strip())  # the first counts, as in pip
    return fields


def header_lines(text: str) -> Iterator[tuple[str, str]]:
    """Yield key, in lower case, and value of each header of METADATA, as pip would parse it."""
    for line in re.split(r"\r\n|\r|\n", text):  # splitlines would split at other characters too
        key, colon, value = line.partition(":")
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
    text = _text(dist, "entry_points.txt") if claimed else ""
    values = (value for _, value in entries(text))
    modules = {value.partition(":")[0].partition(".")[0].strip() for value in values} - {""}
    beside = (dist.locate_file(name) for m in modules for name in (m, f"{m}.py"))
    return claimed and not any(Path(str(place)).exists() for place in beside)


def _distributions(
    groups: Collection[str],
) -> Iterator[tuple[metadata.Distribution, str, dict[str, str]]]:
    """Yield each distribution that mentions a group: entry points and headers; first on path wins.

    Each file is read once: a thousand packages are a few thousand files.
    """
    seen = set()
    for dist in metadata.distributions():
        text = _text(dist, "entry_points.txt")
        if not any(group in text for group in groups):
            continue
        fields = headers(_text(dist, "METADATA") or _text(dist, "PKG-INFO"))
        if not fields["name"]:  # even a broken distribution has a name
            stem = Path(str(getattr(dist, "_path", ""))).stem.partition("-")
            fields |= {"name": one_line(stem[0]), "version": one_line(stem[2])}
        name = canonical(fields["name"])
        if name not in seen:
            seen.add(name)
            yield dist, text, fields


def _text(dist: metadata.Distribution, name: str) -> str:
    """Read a file of a distribution's metadata; an unreadable or huge one counts as empty."""
    folder: Any = getattr(dist, "_path", None)
    try:
        if isinstance(folder, Path):  # takes half as long as `read_text`
            data = read_regular(f"{folder}/{name}", limit=MAX_METADATA)
        else:  # a distribution inside an archive
            with folder.joinpath(name).open("rb") as file:
                data = file.read(MAX_METADATA + 1)
    except Exception:  # an archive on the path may be broken in any way
        return ""
    return data.decode("utf-8", "replace") if len(data) <= MAX_METADATA else ""


def _folder(dist: metadata.Distribution, module: str, manifest: str) -> Path | None:
    """Find a top-level package's folder; `find_spec` on a top-level name imports nothing."""
    try:
        beside = Path(str(dist.locate_file(module)))
        if beside.is_dir():
            return beside
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
