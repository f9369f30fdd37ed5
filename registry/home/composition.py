"""The record of a generation, and the lock derived from it: which experts, by content."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from .. import atomic
from ..errors import IntegrityError, StoreError
from ..package.manifest import dumps
from ..package.safetensors_check import sha256_hex

COMPOSITION_FILE = "composition.json"
"""The file of a generation that lists all its other files."""

Scalar = str | int | float | bool | None


class Provenance(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """An expert's origin and its identity by content; the lock pins exactly this.

    Attributes:
        dist: The distribution it came from.
        version: That distribution's version.
        digest: The build digest: over its manifest, weights, card and canary.
        wheel: The sha256 of the wheel it was composed from, if there was one.
        signer: The fingerprint of the key that verified that wheel, if keys were given.
        source: The index or folder that the wheel was taken from by name, without credentials; or
            the wheel's own path. A relative path starts at the lock's folder.
    """

    dist: str
    version: str
    digest: str
    wheel: str = ""
    signer: str = ""
    source: str = ""


class Member(Provenance, frozen=True):  # not kw_only: msgspec then puts ``id`` first in the JSON
    """An expert of a composition.

    Attributes:
        id: Its id.
    """

    id: str


class BackboneRecord(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The backbone of a composition.

    Attributes:
        id: Its id.
        fingerprint: Its identity by content.
        digest: The digest of the stored copy; empty if none is needed.
        dist: The distribution it came from.
        version: That distribution's version.
        wheel: As in `Provenance`, like the next one; absent if not known.
        source: Where that wheel was.
    """

    id: str
    fingerprint: str
    digest: str = ""
    dist: str = ""
    version: str = ""
    wheel: str | UnsetType = UNSET  # absent and not empty: older records keep their digests
    source: str | UnsetType = UNSET


class LockedRouter(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A trained router, as pinned by the lock.

    Attributes:
        kind: Its kind, with options.
        level: How much of it was retrained: ``zero``, ``row`` or ``full``.
        digest: The digest of its weights.
        seed: The random seed.
    """

    kind: str
    level: str
    digest: str
    seed: int


class RouterRecord(LockedRouter, frozen=True, kw_only=True):
    """The router of a composition, and the data it was trained on.

    Attributes:
        columns: Its columns, in the order of its rows.
        rows: The number of fit rows it was trained on.
    """

    columns: tuple[str, ...]
    rows: int = 0


class Composition(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A published composition, numbered and immutable.

    `Generations.publish` fills in ``number``, ``parent``, ``created``, ``files`` and ``digest``.

    Attributes:
        schema: The version of this schema.
        number: Its number; generations are numbered from 1.
        parent: The generation it was made from; null for the first.
        backbone: Its backbone.
        experts: Its experts, by id in sorted order.
        router: Its router.
        output: ``residual``, one classifier over the sum, or ``mixture`` of answers.
        providers: Plugins that made a part of it, distribution → digest.
        settings: Other settings it was made with, by name; settings that were not given are left
            out.
        created: When it was published, in ISO 8601.
        files: File name → sha256 of each other file of the generation.
        digest: The digest of this record itself.
    """

    schema: Literal["redhost.generation/1"] = "redhost.generation/1"
    number: int = 0
    parent: int | None = None
    backbone: BackboneRecord
    experts: tuple[Member, ...]
    router: RouterRecord
    output: Literal["residual", "mixture"] = "residual"
    providers: dict[str, str] = {}
    settings: dict[str, Scalar] = {}
    created: str = ""
    files: dict[str, str] = {}
    digest: str = ""

    def members(self) -> dict[str, str]:
        """Return expert id → digest."""
        return {member.id: member.digest for member in self.experts}

    def parts(self) -> tuple[Member | BackboneRecord, ...]:
        """Return its experts and its backbone."""
        return (*self.experts, self.backbone)

    def digests(self) -> frozenset[str]:
        """Return every digest whose bytes the store must hold for this composition to answer."""
        # A backbone from a hub has no stored copy.
        return frozenset(part.digest for part in self.parts() if part.digest)


def seal(
    draft: Composition, *, number: int, parent: int | None, files: Mapping[str, bytes]
) -> Composition:
    """Return the record of a generation, complete with the digests that later reveal damage."""
    record = msgspec.structs.replace(
        draft,
        number=number,
        parent=parent,
        experts=tuple(sorted(draft.experts, key=lambda member: member.id)),
        created=draft.created or datetime.now(UTC).isoformat(timespec="seconds"),
        files={name: sha256_hex(data) for name, data in sorted(files.items())},
        digest="",
    )
    return msgspec.structs.replace(record, digest=sha256_hex(dumps(record)))


def read_record(data: bytes, *, number: int) -> Composition:
    """Return the record of a generation, as made by `seal`.

    Args:
        data: The content of its file.
        number: The generation that it must belong to.

    Raises:
        IntegrityError: If it is damaged, or belongs to another generation.
    """
    hint = "Go back with 'redhost rollback', or compose anew with 'redhost recompose'."
    try:
        record = msgspec.json.decode(data, type=Composition)
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        raise IntegrityError(f"generation {number} is damaged", found=str(e), hint=hint) from e
    blank = msgspec.structs.replace(record, digest="")
    if record.number != number or record.digest != sha256_hex(dumps(blank)):
        raise IntegrityError(
            f"generation {number} is damaged",
            found=f"another record (of generation {record.number})",
            hint=hint,
        )
    return record


LOCK = "redhost.lock"
"""The file of a home that a project commits: `lock_for` of its current composition."""


class LockFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of ``redhost.lock``.

    Attributes:
        schema: The version of this schema.
        backbone: The backbone's record.
        experts: The experts, by id.
        plugins: The plugins that made a part, distribution → digest.
        router: The router's kind, level, digest and seed.
        output: As in the composition.
        settings: As in the composition. In `load_settings`, a lock's settings take precedence over
            the project's.
    """

    schema: Literal["redhost.lock/1"] = "redhost.lock/1"
    backbone: BackboneRecord
    experts: dict[str, Provenance]
    plugins: dict[str, str] = {}
    router: LockedRouter
    output: str = "residual"
    settings: dict[str, Scalar] = {}


def lock_for(composition: Composition) -> LockFile:
    """Return the lock of a composition; equal compositions give equal bytes."""
    router, members = composition.router, composition.experts
    return LockFile(
        backbone=composition.backbone,
        experts={m.id: msgspec.convert(m, Provenance, from_attributes=True) for m in members},
        plugins=dict(sorted(composition.providers.items())),
        router=msgspec.convert(router, LockedRouter, from_attributes=True),
        output=composition.output,
        settings=dict(sorted(composition.settings.items())),
    )


def read_lock(path: Path) -> LockFile | None:
    """Read a lock file; return None if there is none.

    Raises:
        StoreError: If it cannot be read or is invalid.
    """
    hint = "Restore it from version control, or remove it and run 'redhost recompose'."
    if (data := atomic.read(path)) is None:
        return None
    try:
        return msgspec.json.decode(data, type=LockFile)
    except ValueError as e:  # no digest: people read it, and version control merges it
        raise StoreError(f"cannot read {path}", found=str(e), hint=hint) from e
