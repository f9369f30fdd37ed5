"""What a home knows to be revoked: content that nothing composes, loads or serves any more.

A home has the last list of each key. A list replaces only an older one of the same key, so that no
key lifts what another one revoked. Lists are fetched and verified by the plugin redhost-revoke; the
host reads what it stored. A file that cannot be read is an error, and never an empty list.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, structs

from ..errors import short
from ..package.checked import Violation

REVOKED = "revoked.json"
"""The file of a home, and of an index."""


class Revocation(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An expert or backbone that is called back.

    Attributes:
        digest: The digest of its content, as in a lock.
        dist: Its distribution, if the author named it, like the next one.
        version: That distribution's version.
        reason: Why.
        revoked_at: When, in ISO 8601.
        signer: The fingerprint of the key that says so; absent in a list, which its key signs.
    """

    digest: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$(?!\n)")]
    dist: str = ""
    version: str = ""
    reason: str
    revoked_at: str
    signer: str | UnsetType = UNSET

    @property
    def why(self) -> str:
        """The reason, when it was given, and by which key."""
        by = f", by the key {short(self.signer)}" if self.signer else ""
        return f"{self.reason} ({self.revoked_at}{by})"

    def violation(self) -> Violation:
        """Return what is wrong with a package of this content."""
        return Violation(
            "revoked",
            "digest",
            "content that is not revoked",
            f"{self.digest[:12]}…, revoked: {self.why}",
            f"Install another version, or decide for yourself: 'redhost revoked --allow "
            f"{self.digest}'.",
        )


class RevokedList(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The list that one key signed: ``revoked.json`` of an index.

    Attributes:
        schema: The version of this schema.
        serial: Larger than that of every earlier list of this key.
        entries: What is revoked.
        signature: The signature of the list with no signature.
    """

    schema: Literal["redhost.revoked/1"] = "redhost.revoked/1"
    serial: Annotated[int, Meta(ge=1, le=2**53)]
    entries: tuple[Revocation, ...] = ()
    signature: dict[str, Any] = {}


class Revocations(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that a home knows.

    Attributes:
        schema: The version of this schema.
        lists: The last list of each key, by the key's fingerprint.
        allowed: Digests that the user allows even so.
    """

    schema: Literal["redhost.revocations/1"] = "redhost.revocations/1"
    lists: dict[str, RevokedList] = {}
    allowed: tuple[str, ...] = ()

    def by_digest(self) -> dict[str, Revocation]:
        """Return what may not be used, with the key that says so."""
        return {
            entry.digest: structs.replace(entry, signer=signer)
            for signer, one in self.lists.items()
            for entry in one.entries
            if entry.digest not in self.allowed
        }
