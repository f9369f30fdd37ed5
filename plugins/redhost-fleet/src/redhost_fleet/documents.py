"""The files of a fleet's store as structs: every file but the objects is one of these, as JSON.

redhost-fleet.json              marks the folder as a fleet's store
objects/SHA256                  the bytes of a file, by content; never changed
generations/N.json              a generation: which objects its files are; never changed
stages/STAGE/SEQUENCE.json      a stage's log: its last entry names the served one; never changed
replicas/ID.json                the last report of one replica, replaced periodically
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
    "Marker",
    "RefusedFileError",
    "ReplicaReport",
    "RevokedDocument",
    "StageEntry",
    "T",
    "clipped",
    "decode",
    "encode",
    "one_line",
]

T = TypeVar("T", bound=Struct)
"""The type of a document."""

Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$(?!\n)")]
Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,99}$(?!\n)")]
Number = Annotated[int, Meta(ge=1, le=10**18)]
Position = Annotated[int, Meta(ge=0, le=10**18)]
Count = Annotated[int, Meta(ge=0, le=10**12)]
Share = Annotated[float, Meta(ge=0, le=1)]
Estimate = Annotated[float, Meta(ge=0, le=1 + 1e-6)]  # a share that was computed, with rounding
Distance = Annotated[float, Meta(ge=0)]
LONGEST, LONGEST_TIME = 2000, 40
Text = Annotated[str, Meta(max_length=LONGEST)]
Key = Annotated[str, Meta(min_length=1, max_length=200)]
MOST_KEYS = Meta(max_length=5000)

COMPOSITION = "composition.json"


def now() -> str:
    """Return the current time in ISO 8601, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def who() -> str:
    """Return the user and machine."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = "someone"
    return f"{user}@{socket.gethostname()}"


def clipped(text: str) -> str:
    """Return a text, shortened to the length that a document may have."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def one_line(text: str) -> str:
    """Return a text from the store as one line for a terminal, without control codes."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


class RefusedFileError(redhost.errors.StoreError):
    """A file of the store is not what its place requires; the store itself can be reached."""


def _check_time(when: str) -> None:
    """Check that a time is in ISO 8601, with a time zone.

    Raises:
        ValueError: If it is not; msgspec reports it as a `ValidationError`.
    """
    if len(when) > LONGEST_TIME or datetime.fromisoformat(when).tzinfo is None:
        raise ValueError("Expected a time in ISO 8601 with a time zone")


class Marker(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The file that identifies a fleet's store.

    Attributes:
        schema: The version of this schema.
        question: The named question that the store's generations answer.
    """

    schema: Literal["redhost.fleet/1"]
    question: Text | None = None


class Document(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file that is written once, with its writer and time.

    Attributes:
        by: The user and machine.
        when: In ISO 8601.
    """

    by: Text = msgspec.field(default_factory=who)
    when: str = msgspec.field(default_factory=now)

    def __post_init__(self) -> None:
        """Check the time."""
        _check_time(self.when)


class RevokedEntry(Struct, frozen=True, kw_only=True):
    """Content that is revoked, as far as a promotion asks.

    Attributes:
        digest: The digest of an expert or backbone.
        dist: Its distribution; empty if its author did not name it, like the next one.
        version: That distribution's version.
        reason: Why.
        revoked_at: When.
    """

    digest: Digest
    dist: str = ""
    version: str = ""
    reason: str = ""
    revoked_at: str = ""

    def __str__(self) -> str:
        return f"{self.dist} {self.version}".strip() or f"{self.digest[:12]}…"


class RevokedEntries(Struct, frozen=True, kw_only=True):
    """The list of one key.

    Attributes:
        entries: What it revokes.
    """

    entries: tuple[RevokedEntry, ...] = ()


class RevokedDocument(Struct, frozen=True, kw_only=True):
    """The store's file of what is revoked, which homes write and verify.

    Attributes:
        lists: The last list of each key.
        allowed: Digests that are allowed even so.
    """

    lists: dict[str, RevokedEntries] = {}
    allowed: tuple[str, ...] = ()

    def by_digest(self) -> dict[str, RevokedEntry]:
        """Return what may not be served."""
        entries = (entry for one in self.lists.values() for entry in one.entries)
        return {entry.digest: entry for entry in entries if entry.digest not in self.allowed}


class GenerationDocument(Document, frozen=True, kw_only=True):
    """A generation that was pushed.

    Attributes:
        schema: The version of this schema.
        number: Its number, the same in every home.
        digest: The digest of its record.
        files: Its files → the sha256 of each.
        packages: Digests of its backbone and experts → their files → the sha256 of each.
        sizes: The size of each object in bytes.
    """

    schema: Literal["redhost.fleet-generation/1"] = "redhost.fleet-generation/1"
    number: Number
    digest: Digest
    files: dict[Name, Digest]
    packages: dict[Digest, dict[Name, Digest]]
    sizes: dict[Digest, Position]

    def __post_init__(self) -> None:
        """Check the time, and that every object has a size."""
        _check_time(self.when)
        if lacking := self.objects() - self.sizes.keys():
            raise ValueError(f"Expected the size of object {min(lacking)[:12]}")

    def objects(self) -> frozenset[str]:
        """Return the sha256 of every file."""
        parts: tuple[Mapping[str, str], ...] = (self.files, *self.packages.values())
        return frozenset(sha for part in parts for sha in part.values())


class StageEntry(Document, frozen=True, kw_only=True):
    """The generation that a stage serves from this entry on.

    Attributes:
        schema: The version of this schema.
        sequence: Its position in the stage's log, from 1.
        generation: The generation; None for none (a canary that ended).
        digest: The digest of its record; empty for none.
        share: For a canary: the share of the requests that it answers, 0–1.
        mirror: For a canary: whether it also receives all other requests, for comparison.
        why: The writer's reason.
        token: Random, so that no two entries are equal and a writer recognises its own.
    """

    schema: Literal["redhost.stage/1"] = "redhost.stage/1"
    sequence: Number
    generation: Number | None
    digest: Annotated[str, Meta(pattern=r"^([0-9a-f]{64})?$(?!\n)")] = ""
    share: Share = 0.0
    mirror: bool = False
    why: Text = ""
    token: Text = ""


class Comparison(Struct, frozen=True, kw_only=True):
    """Counts that compare two generations on the same texts; they add up over replicas.

    Attributes:
        texts: Texts that both answered.
        agree: Texts with the same label from both.
        declined: Texts that production declined.
        canary_declined: Texts that the canary declined.
        better: Labelled texts that the canary alone answers right.
        worse: Labelled texts that production alone answers right.
        same: Other labelled texts.
        only_canary_declined: Texts that the canary declined and production did not.
        only_declined: Texts that production declined and the canary did not.
    """

    texts: Count = 0
    agree: Count = 0
    declined: Count = 0
    canary_declined: Count = 0
    better: Count = 0
    worse: Count = 0
    same: Count = 0
    only_canary_declined: Count = 0
    only_declined: Count = 0

    def __add__(self, other: Comparison) -> Comparison:
        """Return the counts of both."""
        mine, more = msgspec.structs.asdict(self), msgspec.structs.asdict(other)
        return Comparison(**{name: mine[name] + more[name] for name in mine})


class Drift(Struct, frozen=True, kw_only=True):
    """The distance of one expert's texts from its card's rows.

    Attributes:
        texts: Number of texts.
        distance: Between the means, in standard deviations of the card's rows.
    """

    texts: Count
    distance: Distance


class ReplicaReport(Struct, frozen=True, kw_only=True):
    """A replica's report on itself; unknown fields of newer versions are ignored.

    Attributes:
        schema: The version of this schema.
        replica: Its id.
        url: The address at which it answers, if known.
        pid: Its process id.
        started: Time at which it started, in ISO 8601.
        when: Time of this report.
        generation: The generation that it serves; None for none.
        production: The entry of production's log that it has followed, 0 for none.
        canary: The entry of the canary's log that it has followed, 0 for none.
        trial: The generation that it runs as a canary.
        state: ``serving``, ``behind`` (it could not follow: see `reason`) or ``waiting``.
        reason: The reason why it is behind.
        refused: The reason why it cannot run the canary's entry, e.g. damage, or answers to the
            gate rows that differ from the receipt; empty if it can.
        seconds: From the time that the entry was written to its first answer, by its own clock.
        comparisons: For the canary's entry: counts by the expert with the largest weight.
        shares: Live shares of the experts, estimated from the router's weights.
        priors: Shares of the experts that the router expects.
        texts: Number of texts that the live shares were estimated from.
        drift: Drift by expert.
    """

    schema: Literal["redhost.replica/1"] = "redhost.replica/1"
    replica: Name
    url: Text = ""
    pid: Count = 0
    started: Text = ""
    when: str = msgspec.field(default_factory=now)
    generation: Number | None = None
    production: Position = 0
    canary: Position = 0
    trial: Number | None = None
    state: Literal["serving", "behind", "waiting"] = "waiting"
    reason: Text = ""
    refused: Text = ""
    seconds: float | None = None
    comparisons: Annotated[dict[Key, Comparison], MOST_KEYS] = {}
    shares: Annotated[dict[Key, Estimate], MOST_KEYS] = {}
    priors: Annotated[dict[Key, Estimate], MOST_KEYS] = {}
    texts: Count = 0
    drift: Annotated[dict[Key, Drift], MOST_KEYS] = {}

    def __post_init__(self) -> None:
        """Check the time."""
        _check_time(self.when)


def encode(document: Struct) -> bytes:
    """Return a document as a file."""
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def decode(data: bytes, kind: type[T], *, where: str) -> T:
    """Return the document in a file.

    Raises:
        RefusedFileError: If it is damaged, or newer than this version.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as e:
        raise RefusedFileError(
            f"cannot understand {where}",
            found=str(e),
            hint="A newer redhost-fleet may have written it.",
        ) from e
