"""What lies in a fleet's store, as structs: every file but the objects is one of these, as JSON.

redhost-fleet.json              says that this is a fleet's store
objects/SHA256                  the bytes of a file, by content; never changed
generations/N.json              a generation: which objects its files are; never changed
stages/STAGE/SEQUENCE.json      a stage's log: its last entry says what is served; never changed
replicas/ID.json                what one replica says of itself, now and then
"""

from __future__ import annotations

import getpass
import socket
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

import redhost

__all__ = [
    "Comparison",
    "Drift",
    "GenerationDocument",
    "ReplicaReport",
    "StageEntry",
    "decode",
    "encode",
]

T = TypeVar("T", bound=Struct)

Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$(?!\n)")]
Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,99}$(?!\n)")]
Number = Annotated[int, Meta(ge=1, le=10**18)]
Share = Annotated[float, Meta(ge=0, le=1)]

COMPOSITION = "composition.json"


def now() -> str:
    """Return the time, in ISO 8601, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def who() -> str:
    """Return the user and machine."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = "someone"
    return f"{user}@{socket.gethostname()}"


class Document(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file that was written once: who wrote it, and when.

    Attributes:
        by: The user and machine.
        when: In ISO 8601.
    """

    by: str = msgspec.field(default_factory=who)
    when: str = msgspec.field(default_factory=now)


class GenerationDocument(Document, frozen=True, kw_only=True):
    """A generation that was pushed.

    Attributes:
        schema: The version of this schema.
        number: Its number, in every home.
        digest: Of its record.
        files: Its files → the sha256 of each.
        packages: Digests of its backbone and experts → their files → the sha256 of each.
        sizes: The bytes of each object.
    """

    schema: Literal["redhost.fleet-generation/1"] = "redhost.fleet-generation/1"
    number: Number
    digest: Digest
    files: dict[Name, Digest]
    packages: dict[Digest, dict[Name, Digest]]
    sizes: dict[Digest, int]

    def objects(self) -> frozenset[str]:
        """Return the sha256 of every file."""
        parts: tuple[Mapping[str, str], ...] = (self.files, *self.packages.values())
        return frozenset(sha for part in parts for sha in part.values())


class StageEntry(Document, frozen=True, kw_only=True):
    """What a stage serves from one moment on.

    Attributes:
        schema: The version of this schema.
        sequence: Its place in the stage's log, from 1.
        generation: The generation; None for none (a canary that ended).
        digest: Of its record; empty for none.
        share: Of a canary: how many of the requests it answers, 0–1.
        mirror: Of a canary: whether it reads all others too, to be compared.
        why: What moved whoever wrote it.
        token: Random: no two entries are the same bytes, so a writer knows its own.
    """

    schema: Literal["redhost.stage/1"] = "redhost.stage/1"
    sequence: Number
    generation: Number | None
    digest: str = ""
    share: Share = 0.0
    mirror: bool = False
    why: str = ""
    token: str = ""


class Comparison(Struct, frozen=True, kw_only=True):
    """Two generations on the same texts: counts, which add up over replicas.

    Attributes:
        texts: Texts that both answered.
        agree: Those with the same label from both.
        declined: Texts that production declined.
        canary_declined: Texts that the canary declined.
        better: Labelled texts that the canary alone has right.
        worse: Labelled texts that production alone has right.
        same: Other labelled texts.
        only_canary_declined: Texts that the canary declined and production did not.
        only_declined: Texts that production declined and the canary did not.
    """

    texts: int = 0
    agree: int = 0
    declined: int = 0
    canary_declined: int = 0
    better: int = 0
    worse: int = 0
    same: int = 0
    only_canary_declined: int = 0
    only_declined: int = 0

    def __add__(self, other: Comparison) -> Comparison:
        """Return the counts of both."""
        mine, more = msgspec.structs.asdict(self), msgspec.structs.asdict(other)
        return Comparison(**{name: mine[name] + more[name] for name in mine})


class Drift(Struct, frozen=True, kw_only=True):
    """How far the texts of one expert lie from its card's rows.

    Attributes:
        texts: How many texts.
        distance: Between the means, in standard deviations of the card's rows.
    """

    texts: int
    distance: float


class ReplicaReport(Struct, frozen=True, kw_only=True):
    """What a replica says of itself; a newer one may say more, which is passed over.

    Attributes:
        schema: The version of this schema.
        replica: Its id.
        url: Where it answers, if that is known.
        pid: Its process.
        started: Since when it runs, in ISO 8601.
        when: When it wrote this.
        generation: What it serves; None for nothing.
        production: The entry of production's log that it has followed, 0 for none.
        canary: The entry of the canary's log that it has followed, 0 for none.
        trial: The generation it runs as a canary.
        state: ``serving``, ``behind`` (it could not follow: see `reason`) or ``waiting``.
        reason: Why it is behind.
        refused: Why it cannot run the canary's entry: it is damaged or does not answer the gate
            rows as its receipt says; empty where it can.
        seconds: From the time that the entry was written to its first answer, by its own clock.
        comparisons: Of the canary's entry: counts by the expert with the largest weight.
        shares: Live shares of the experts, estimated from the router's weights.
        priors: Shares of the experts that the router expects.
        texts: Texts that the live shares were estimated from.
        drift: By expert.
    """

    schema: Literal["redhost.replica/1"] = "redhost.replica/1"
    replica: Name
    url: str = ""
    pid: int = 0
    started: str = ""
    when: str = ""
    generation: int | None = None
    production: int = 0
    canary: int = 0
    trial: int | None = None
    state: Literal["serving", "behind", "waiting"] = "waiting"
    reason: str = ""
    refused: str = ""
    seconds: float | None = None
    comparisons: dict[str, Comparison] = {}
    shares: dict[str, float] = {}
    priors: dict[str, float] = {}
    texts: int = 0
    drift: dict[str, Drift] = {}


def encode(document: Struct) -> bytes:
    """Return a document as a file."""
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def decode(data: bytes, kind: type[T], *, where: str) -> T:
    """Return what a file holds.

    Raises:
        StoreError: If it is damaged, or newer than this.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        raise redhost.errors.StoreError(
            f"cannot understand {where}",
            found=str(e),
            hint="A newer redhost-fleet may have written it.",
        ) from e
