"""The list of a folder of wheels: what `export-wheels` wrote, each file with its sha256."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from msgspec import Struct

from redhost.registry.atomic import read_struct, write_struct

from .locks import Kind

MANIFEST = "redhost-wheels.json"


class WheelEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A wheel of the folder.

    Attributes:
        file: Its file name.
        sha256: The sha256 of the file.
        dist: Its distribution.
        version: Its version.
        kind: ``expert``, ``backbone``, ``plugin``, or ``dependency`` for all others.
        digest: The digest of its content, as the lock has it; empty for a dependency.
    """

    file: str
    sha256: str
    dist: str
    version: str
    kind: Kind
    digest: str = ""


class WheelList(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of ``redhost-wheels.json``.

    Attributes:
        schema: The version of this schema.
        wheels: The wheels, by file name in sorted order.
        routers: Digest of a router → the file with its weights, of the locks' routers.
    """

    schema: Literal["redhost.wheels/1"] = "redhost.wheels/1"
    wheels: tuple[WheelEntry, ...]
    routers: dict[str, str] = {}


def read_list(folder: Path) -> WheelList | None:
    """Return the list of a folder; None if it has none.

    Raises:
        StoreError: If it is damaged: a digest in the file covers it.
    """
    hint = "Export the wheels again: 'redhost export-wheels FOLDER'."
    return read_struct(folder / MANIFEST, WheelList, hint=hint)


def write_list(folder: Path, wheels: WheelList) -> None:
    """Write the list of a folder, after all that it names."""
    write_struct(folder / MANIFEST, wheels)
