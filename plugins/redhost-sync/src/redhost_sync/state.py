"""What this environment has of a package: nothing, this content, or another."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import suppress
from importlib import metadata

from redhost.registry.environment.installed import audit_installed
from redhost.registry.environment.trust import digest_of
from redhost.registry.errors import IntegrityError, UnknownNameError
from redhost.registry.package.checked import Checked
from redhost.registry.package.discover import Kind, Package, canonical, discover, require_one
from redhost.registry.package.readers import (
    BackboneFiles,
    ExpertFiles,
    read_backbone,
    read_expert,
)

from .locks import Part


def version_of(dist: str) -> str | None:
    """Return the version of an installed distribution, None if it is not installed."""
    importlib.invalidate_caches()
    with suppress(metadata.PackageNotFoundError):
        # What an installer left half-way has a folder, but no metadata in it.
        return metadata.distribution(dist).metadata["Version"]
    return None


def package_of(kind: Kind, dist: str) -> Package | None:
    """Return the installed expert or backbone of a distribution.

    Raises:
        IntegrityError: If there are several.
    """
    importlib.invalidate_caches()
    found = [p for p in discover(kind) if canonical(p.dist) == canonical(dist)]
    require_one(dist, {p.info for p in found})
    return found[0] if found else None


def is_installed(part: Part) -> bool:
    """Return whether what is installed is what the lock names, every byte of it."""
    if part.kind == "dependency":
        return version_of(part.dist) == part.version
    if part.kind == "plugin":
        importlib.invalidate_caches()
        try:
            return digest_of(part.dist) == part.digest
        except (IntegrityError, UnknownNameError):
            return False
    read: Callable[[Package], Checked[ExpertFiles] | Checked[BackboneFiles]]
    read = read_expert if part.kind == "expert" else read_backbone
    package = package_of(part.kind, part.dist)
    if package is None or package.folder is None or package.version != part.version:
        return False
    files = read(package).value
    return files is not None and files.digest == part.digest and not audit_installed(package)
