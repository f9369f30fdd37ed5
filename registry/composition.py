"""What a generation records: who was composed, with which router, from which parent."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Literal

import msgspec
from msgspec import Struct

from .errors import IntegrityError
from .integrity import sha256_hex
from .manifest import dumps

__all__ = [
    "RECORD",
    "BackboneRecord",
    "Composition",
    "Member",
    "RouterRecord",
    "Scalar",
    "decode",
    "digests",
    "seal",
]

RECORD = "composition.json"
"""The file of a generation that describes all others."""

Scalar = str | int | float | bool | None


class Member(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """An expert of a composition, by content.

    ``wheel`` is the sha256 of the wheel it came from, where `redhost add` saw it; ``signer`` is the
    fingerprint of the key that verified that wheel, where keys were asked for.
    """

    id: str
    dist: str
    version: str
    digest: str
    wheel: str = ""
    signer: str = ""


class BackboneRecord(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The backbone of a composition; ``digest`` is empty when no stored copy is needed."""

    id: str
    fingerprint: str
    digest: str = ""
    dist: str = ""
    version: str = ""


class RouterRecord(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The router of a composition: what was trained, from what, and the digest of the result."""

    kind: str
    level: str
    digest: str
    seed: int
    columns: tuple[str, ...]
    rows: int = 0


class Composition(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A published composition, numbered and immutable.

    `Generations.publish` fills in ``number``, ``parent``, ``created``, ``files`` (sha256 of each
    other file of the generation) and ``digest`` (of this record itself).
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


def seal(
    draft: Composition, *, number: int, parent: int | None, files: Mapping[str, bytes]
) -> Composition:
    """Return the record of a generation, complete with the digests that show damage later."""
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


def decode(data: bytes, *, number: int) -> Composition:
    """Read a record and check that it is the one that was sealed.

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
        found = f"another record (of generation {record.number})"
        raise IntegrityError(f"generation {number} is damaged", found=found, hint=hint)
    return record


def digests(composition: Composition) -> frozenset[str]:
    """Return every digest whose bytes the store must hold for this composition to answer."""
    found = {member.digest for member in composition.experts} | {composition.backbone.digest}
    return frozenset(found - {""})
