"""What a wheel consists of and asks for, as CycloneDX 1.6: one file beside each released wheel.

Components are what the wheel requires, directly and in turn, in the versions that the release was
made with and tested against: those of its environment, or of the release itself. What is required
and not installed, such as MLflow, has a name and no version. The ranges that the wheel admits are
properties of its own component. Equal wheels in equal environments give equal bytes.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.message import Message
from email.parser import HeaderParser
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote
from uuid import NAMESPACE_URL, uuid5

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

__all__ = ["SCHEMA", "SUFFIX", "Project", "required", "sbom", "write_sboms"]

SCHEMA = "1.6"
SUFFIX = ".cdx.json"
"""Of the file's name, behind that of the wheel."""


@dataclass(frozen=True, kw_only=True)
class Project:
    """A distribution, in one version.

    Attributes:
        name: Its name, normalised.
        version: Empty if it is not installed.
        license: An SPDX expression; empty if its metadata has none.
        requires: What it asks for, with markers.
        sha256: Of its wheel, if that is released here.
        kind: What its component is.
    """

    name: str
    version: str = ""
    license: str = ""
    requires: tuple[Requirement, ...] = ()
    sha256: str = ""
    kind: str = "library"

    @property
    def url(self) -> str:
        """Its package URL."""
        return f"pkg:pypi/{self.name}{'@' if self.version else ''}{quote(self.version)}"

    @property
    def component(self) -> dict[str, Any]:
        """What an SBOM has of it."""
        digests = [{"alg": "SHA-256", "content": self.sha256}]
        fields: dict[str, Any] = {
            "type": self.kind,
            "bom-ref": self.url,
            "name": self.name,
            "version": self.version,
            "hashes": digests if self.sha256 else [],
            "licenses": [{"expression": self.license}] if self.license else [],
            "purl": self.url,
        }
        return {key: value for key, value in fields.items() if value}

    def wanted(self, extras: Iterable[str]) -> list[Requirement]:
        """Return what it requires here, with these extras."""
        settings = [{"extra": extra} for extra in (*extras, "")]
        return [
            r for r in self.requires if r.marker is None or any(map(r.marker.evaluate, settings))
        ]


def write_sboms(folder: Path, *, time: int) -> list[Path]:
    """Write the SBOM of each wheel of a folder beside it.

    Args:
        folder: Where the wheels are.
        time: Of the commit, in seconds since 1970.

    Returns:
        The files.
    """
    wheels = {p: _read_wheel(p) for p in sorted(folder.glob("*.whl"))}
    released = {project.name: project for project in wheels.values()}
    files = []
    for path, project in wheels.items():
        files.append(path.with_name(path.name + SUFFIX))
        files[-1].write_text(sbom(project, released=released, time=time), "utf-8")
    return files


def sbom(project: Project, *, released: Mapping[str, Project], time: int) -> str:
    """Return the SBOM of a project as JSON."""
    edges = required(project, released=released)
    projects = sorted(edges, key=lambda each: each.name)
    urls = {each.name: each.url for each in projects}
    ranges = [{"name": "requires-dist", "value": str(r)} for r in project.requires]
    document = {
        "$schema": f"http://cyclonedx.org/schema/bom-{SCHEMA}.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": SCHEMA,
        "serialNumber": uuid5(NAMESPACE_URL, f"{project.url}#{project.sha256}").urn,
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(time, UTC).isoformat(),
            "lifecycles": [{"phase": "build"}],
            "tools": {"components": [{"type": "application", "name": "tools/sbom.py"}]},
            "component": {**project.component, "properties": ranges},
        },
        "components": [
            p.component for p in sorted(edges, key=lambda p: p.name) if p is not project
        ],
        "dependencies": [
            {"ref": each.url, "dependsOn": sorted(urls[name] for name in edges[each])}
            for each in projects
        ],
    }
    return json.dumps(document, indent=2) + "\n"


def required(project: Project, *, released: Mapping[str, Project]) -> dict[Project, set[str]]:
    """Return a project and all that it requires in turn, each with the names it asks for."""
    edges: dict[Project, set[str]] = {project: set()}
    found = {project.name: project}
    waiting: list[tuple[Project, frozenset[str]]] = [(project, frozenset())]
    done: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        parent, extras = waiting.pop()
        if (parent.name, extras) in done:
            continue
        done.add((parent.name, extras))
        for requirement in parent.wanted(extras):
            name = canonicalize_name(requirement.name)
            if name not in found:
                found[name] = released.get(name) or _read_installed(name)
            if name != parent.name:  # an extra that names others
                edges[parent].add(name)
            edges.setdefault(found[name], set())
            waiting.append((found[name], frozenset(requirement.extras)))
    return edges


def _read_wheel(path: Path) -> Project:
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        [metadata] = [n for n in names if n.endswith(".dist-info/METADATA")]
        head = HeaderParser().parsestr(archive.read(metadata).decode("utf-8"))
    weights = any(name.endswith(".safetensors") for name in names)
    kind = "machine-learning-model" if weights else "library"
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    return _read_head(head, sha256=sha256, kind=kind)


def _read_installed(name: str) -> Project:
    try:
        return _read_head(cast("Message", distribution(name).metadata))
    except PackageNotFoundError:
        return Project(name=name)


def _read_head(head: Message, *, sha256: str = "", kind: str = "library") -> Project:
    return Project(
        name=canonicalize_name(str(head["Name"])),
        version=str(head["Version"]).partition("+")[0],
        license=str(head["License-Expression"] or ""),
        requires=tuple(map(Requirement, head.get_all("Requires-Dist") or ())),
        sha256=sha256,
        kind=kind,
    )
