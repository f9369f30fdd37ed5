"""The content of ``catalogue.json``: every version of an index, as its wheel says."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct
from packaging.version import InvalidVersion
from packaging.version import Version as Number

from redhost.registry.errors import StoreError

CATALOGUE = "catalogue.json"
PAGE = "catalogue.html"
SCHEMA = "redhost.catalogue/1"

LABELS = 12
"""Most labels that are listed of a version."""


class StaticCheck(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `redhost check --strict` finds without computing anything.

    Attributes:
        redhost: The version of redhost that checked it.
        against: The backbone of the catalogue that it was checked against, with its version; empty
            if the catalogue has none of its fingerprint.
        code: The code of the first violation; empty if there is none. A version with ``strict``
            can be composed, and lacks what a published one should have.
        reason: That violation, in a line.
    """

    redhost: str
    against: str = ""
    code: str = ""
    reason: str = ""

    @property
    def composable(self) -> bool:
        """Whether nothing found rules a composition out."""
        return self.code in {"", "strict"}


class Version(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A wheel of an expert or of a backbone, or one that cannot be read.

    Attributes:
        file: Its path in the folder.
        sha256: The sha256 of the file.
        size: Its bytes.
        uploaded: When it was put there, in ISO 8601.
        kind: ``expert``, ``backbone``, or ``unreadable``.
        id: Its id; empty if it cannot be read.
        dist: Its distribution.
        version: Its version.
        domain: The inputs it is for, shortened.
        question: The question it answers; empty for the default one.
        backbone: The name of the backbone it was made for; a backbone's own.
        fingerprint: That backbone's fingerprint.
        bus_api: The versions of the bus it works with.
        form: The form of an expert, the task of a backbone.
        labels: Its first labels.
        label_count: How many it has.
        accuracy: Its accuracy on its own gate rows, as its author measured it.
        gate_rows: The number of these rows.
        discloses: What its card discloses of its author's rows.
        license: The license of the weights.
        signature: ``none``, ``claimed`` (not verified), ``verified`` or ``wrong``.
        signer: The fingerprint of the key that signed it, as far as `signature` says.
        check: The result of the static check.
        digest: The digest of its content, as locks and revocations name it; empty if it cannot be
            read.
    """

    file: str
    sha256: str
    size: int
    uploaded: str
    kind: Literal["expert", "backbone", "unreadable"]
    id: str = ""
    dist: str = ""
    version: str = ""
    domain: str = ""
    question: str = ""
    backbone: str = ""
    fingerprint: str = ""
    bus_api: str = ""
    form: str = ""
    labels: tuple[str, ...] = ()
    label_count: int = 0
    accuracy: float | None = None
    gate_rows: int = 0
    discloses: str = ""
    license: str = ""
    signature: Literal["none", "claimed", "verified", "wrong"] = "none"
    signer: str = ""
    check: StaticCheck
    digest: str = ""


class Catalogue(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of ``catalogue.json``.

    Attributes:
        schema: The version of this schema.
        redhost: The version of redhost that wrote it.
        versions: The versions, by distribution, the newest of each first.
        others: Path of every other wheel → its sha256.
    """

    schema: Literal["redhost.catalogue/1"] = "redhost.catalogue/1"
    redhost: str
    versions: tuple[Version, ...]
    others: dict[str, str] = {}


_CATALOGUE = msgspec.json.Decoder(Catalogue)
"""Made here and not by the first of several threads."""


class _Schema(Struct):
    schema: str = ""


def decode(data: bytes, where: str) -> Catalogue:
    """Return a catalogue.

    Args:
        data: The content of the file.
        where: Where it was read, for messages.

    Raises:
        StoreError: If it is none, or of another schema.
    """
    try:
        return _CATALOGUE.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        found = str(e)[:200]
        try:
            schema = msgspec.json.decode(data, type=_Schema).schema
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            schema = ""
        if schema and schema != SCHEMA:
            found = schema[:80]
        hint = "Write it again where the wheels are: 'redhost catalogue FOLDER'."
        raise StoreError(f"cannot read {where}", expected=SCHEMA, found=found, hint=hint) from e


def number_of(version: str) -> Number:
    """Return a version as it is compared; what is none comes before all others."""
    try:
        return Number(version)
    except InvalidVersion:
        return Number("0.dev0")
