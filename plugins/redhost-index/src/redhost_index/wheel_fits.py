"""Does a wheel of an index fit: it is downloaded for that, and audited."""

from __future__ import annotations

import platform
import tempfile
from dataclasses import replace
from pathlib import Path

from packaging.metadata import parse_email
from packaging.requirements import Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from redhost_sync.index import Link

import redhost
from redhost.registry.errors import RedhostError, excerpt
from redhost.registry.package.discover import MAX_METADATA, canonical
from redhost.registry.package.manifest import BackboneManifest
from redhost.registry.package.rules import check_compatible
from redhost.registry.wheel.wheel import read_wheel

from .fits import Fit
from .place import Place

SMALL = 32 * 2**20
"""Bytes of the largest wheel that is downloaded to see whether it fits."""


def fit_of_python(link: Link) -> Fit | None:
    """Return that a file needs another Python; None if it does not."""
    try:
        wanted = SpecifierSet(link.requires_python)
    except InvalidSpecifier:
        return None
    if wanted.contains(platform.python_version(), prereleases=True):
        return None
    return Fit(fits=False, why=f"needs Python {excerpt(link.requires_python, most=80)}")


def fit_of_metadata(link: Link, place: Place) -> Fit:
    """Return whether a plugin works with this redhost, as its METADATA says (PEP 658)."""
    try:
        data = place.read(replace(link, url=f"{link.url}.metadata"), most=MAX_METADATA)
        needed = parse_email(data)[0].get("requires_dist", [])
        required = [Requirement(line) for line in needed]
    except RedhostError as e:
        return Fit(fits=None, why=e.reason)
    except ValueError as e:
        return Fit(fits=None, why=excerpt(f"its METADATA cannot be read: {e}", most=200))
    for one in required:
        ours = canonical(one.name) == "redhost" and one.marker is None
        if ours and not one.specifier.contains(redhost.__version__, prereleases=True):
            return Fit(fits=False, why=f"needs redhost{excerpt(str(one.specifier), most=80)}")
    return Fit(fits=True)


def fit_of_wheel(link: Link, place: Place, backbone: BackboneManifest, *, most: int = SMALL) -> Fit:
    """Return whether an expert's wheel fits; it is downloaded for that, and audited."""
    try:
        data = place.read(link, most=most)
    except RedhostError as e:
        return Fit(fits=None, why=e.reason)
    with tempfile.TemporaryDirectory(prefix="redhost-") as folder:
        path = Path(folder, Path(link.file).name)
        path.write_bytes(data)
        read = read_wheel(path)
    if read.value is None:
        return Fit(fits=False, why=f"{read.violations[0].code}: {read.violations[0].reason}")
    if read.value.package.kind != "expert":
        return Fit(fits=False, why="it is no expert any more")
    expert = read.value.expert
    violations, digest = expert.violations, ""
    if expert.value is not None:
        files = expert.value
        digest = files.digest
        violations = check_compatible(files.manifest, backbone, classes=files.classes)
    first = violations[0] if violations else None
    why = "" if first is None else f"{first.code}: {first.reason}"
    return Fit(fits=first is None, why=why, digest=digest)
