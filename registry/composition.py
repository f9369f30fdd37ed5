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

    Attributes:
        id: Its id.
        dist: The distribution it came from.
        version: That distribution's version.
        digest: Over its manifest, weights, card and canary.
        wheel: The sha256 of the wheel it came from, where `redhost add` saw it.
        signer: The fingerprint of the key that verified that wheel, where keys were asked for.
    """

    id: str
    dist: str
    version: str
    digest: str
    wheel: str = ""
    signer: str = ""


class BackboneRecord(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The backbone of a composition.

    Attributes:
        id: Its id.
        fingerprint: What it is, by content.
        digest: Of the stored copy; empty when none is needed.
        dist: The distribution it came from.
        version: That distribution's version.
    """

    id: str
    fingerprint: str
    digest: str = ""
    dist: str = ""
    version: str = ""


class RouterRecord(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The router of a composition: what was trained, from what, and the digest of the result.

    Attributes:
        kind: Its kind, with options.
        level: How much of it was retrained: ``zero``, ``row`` or ``full``.
        digest: Of its weights.
        seed: Where randomness came from.
        columns: What it weighs, in the order of its rows.
        rows: Fit rows it was trained on.
    """

    kind: str
    level: str
    digest: str
    seed: int
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
        settings: Empty: all that a composition depends on has a field of its own. The key stays,
            for the digest of every record on disk covers it.
        created: When it was published, in ISO 8601.
        files: File name → sha256 of each other file of the generation.
        digest: Of this record itself.
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
