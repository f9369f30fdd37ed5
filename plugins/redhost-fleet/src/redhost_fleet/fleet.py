"""A fleet's store: push complete generations, and pull them verified byte by byte."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import redhost
from redhost.plugins import Composition, Generations
from redhost_fleet.documents import (
    COMPOSITION,
    GenerationDocument,
    Marker,
    RefusedFileError,
    ReplicaReport,
    RevokedDocument,
    StageEntry,
    T,
    clipped,
    decode,
    encode,
)
from redhost_fleet.reports import Reports, read_report, read_reports
from redhost_fleet.stages import PRODUCTION, STAGES, StageLog
from redhost_fleet.storage import Storage, open_storage

if TYPE_CHECKING:
    from redhost.registry.home.revoked import Revocations

__all__ = ["Fleet", "GcReport", "PushReport"]

BACKBONE = "backbone.json"
"""The file that identifies a backbone's package."""

REVOKED = "revoked.json"
"""The file with what is revoked, for every replica."""

MARKER = "redhost-fleet.json"
"""The file that identifies a fleet's store."""

_NUMBER = re.compile(r"([1-9][0-9]{0,17})\.json")

Progress = Callable[[int, int], None]
"""Called with the number of bytes done and the total."""


@dataclass(frozen=True, kw_only=True)
class PushReport:
    """The result of a push.

    Attributes:
        number: The generation.
        sent: Bytes of the objects that the store did not have.
        bytes: Bytes of all objects of the generation.
    """

    number: int
    sent: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class GcReport:
    """What `Fleet.gc` removed, or would remove.

    Attributes:
        generations: Numbers, ascending.
        objects: Number of objects that nothing needs any more.
    """

    generations: tuple[int, ...]
    objects: int


class Fleet:
    """Machines that share one store.

    Args:
        storage: The store, or its address.
    """

    def __init__(self, storage: Storage | str) -> None:
        self.storage = open_storage(storage) if isinstance(storage, str) else storage
        self.stages = {stage: StageLog(self.storage, stage) for stage in STAGES}

    def require(self) -> None:
        """Check that a fleet's store exists: an empty folder may be a disk that is not mounted.

        Raises:
            StoreError: If it does not exist, or cannot be reached.
        """
        if self.storage.read(MARKER) is None:
            raise redhost.errors.StoreError(
                f"there is no store of a fleet at {self.storage.url}",
                expected=MARKER,
                found="nothing",
                hint="Run 'redhost push' to begin one.",
            )

    # -- generations ------------------------------------------------------------------------------

    def push(
        self, generations: Generations, number: int, *, progress: Progress | None = None
    ) -> PushReport:
        """Upload a generation of a home, with the bytes of everything in it.

        Objects that the store has are not sent again. The document that names the objects is
        written last, so an interrupted push leaves nothing that a replica could follow.

        Args:
            generations: The home's generations.
            number: The number of the generation.
            progress: Called as objects are sent.

        Raises:
            RedhostError: If its bytes are missing or damaged here.
            StaleGenerationError: If the store has another generation of that number.
        """
        if (refusal := generations.refusal(generations.load(number))) is not None:
            raise refusal
        document, objects = _read(generations, number)
        self._begin(generations.load(number))
        if (taken := self.document(number)) is not None and taken.digest != document.digest:
            raise redhost.errors.StaleGenerationError(
                f"{self.storage.url} has another generation {number}",
                expected=document.digest[:12],
                found=f"{taken.digest[:12]}, pushed by {taken.by} at {taken.when}",
                hint="Run 'redhost pull', then 'redhost recompose': it gets the next number.",
            )
        total, done, sent = sum(document.sizes.values()), 0, 0
        present = set(self.storage.names("objects"))
        for sha, data in objects:
            if sha not in present:
                self._send(sha, data)
                present.add(sha)
                sent += len(data)
            done += len(data)
            if progress is not None:
                progress(done, total)
        if not self.storage.create(_document(number), encode(document)) and taken is None:
            return self.push(generations, number)  # another writer was first: report whose it is
        return PushReport(number=number, sent=sent, bytes=total)

    def _begin(self, record: Composition) -> None:
        """Bind a new store to the generation's question; check the question of an existing one."""
        q = record.settings.get("question")
        marker = Marker(schema="redhost.fleet/1", question=str(q) if q else None)
        self.storage.create(MARKER, encode(marker))
        data = self.storage.read(MARKER) or b""
        found = decode(data, Marker, where=f"{self.storage.url}/{MARKER}").question
        if found != marker.question:
            expected, sent = (f"question {x!r}" if x else "no name" for x in (found, q))
            raise redhost.errors.StoreError(
                f"{self.storage.url} is another question's store",
                expected=f"a generation that answers {expected}",
                found=sent,
                hint="Give each question a folder of its own, e.g. URL/NAME.",
            )

    def _send(self, sha: str, data: bytes) -> None:
        """Write an object and read it back: an acknowledged write may still be truncated."""
        name = f"objects/{sha}"
        self.storage.create(name, data)  # another writer may have sent it meanwhile
        found = self.storage.read(name, limit=len(data))
        if found is not None and hashlib.sha256(found).hexdigest() == sha:
            return
        self.storage.remove(name)
        raise redhost.errors.StoreError(
            f"{self.storage.url} did not store what was sent",
            expected=f"sha256:{sha[:12]}…",
            found="other bytes",
            hint="Push again.",
        )

    def document(self, number: int) -> GenerationDocument | None:
        """Return a generation's document; None if it was never pushed."""
        name = _document(number)
        if (data := self.storage.read(name)) is None:
            return None
        return decode(data, GenerationDocument, where=f"{self.storage.url}/{name}")

    def push_revoked(self, generations: Generations) -> bool:
        """Hand what a home knows to be revoked to every replica.

        The newer list of each key counts, so that a home that is behind takes nothing back; which
        digests are allowed even so, the last push decides.

        Args:
            generations: The home's generations.

        Returns:
            Whether the store has something new.
        """
        self.require()
        mine, data = generations.store.revocations(), self.storage.read(REVOKED)
        merged = encode(mine if data is None else _merged(self._decoded(data, type(mine)), mine))
        if merged == data or (data is None and not mine.lists):
            return False
        self.storage.write(REVOKED, merged)
        return True

    def pull_revoked(self, generations: Generations, *, seen: bytes | None = None) -> bytes | None:
        """Record in a home what its fleet knows to be revoked.

        Args:
            generations: The home's generations.
            seen: What the last call returned; if it is the same, nothing is done.

        Returns:
            The store's file; None if it has none.

        Raises:
            RefusedFileError: If that cannot be read; the home is unchanged.
        """
        data, store = self.storage.read(REVOKED), generations.store
        if data is None or data == seen:
            return data
        with generations.writer():
            known = store.revocations()
            if (merged := _merged(known, self._decoded(data, type(known)))) != known:
                store.write_revocations(merged)
        return data

    def _decoded(self, data: bytes, kind: type[T]) -> T:
        return decode(data, kind, where=f"{self.storage.url}/{REVOKED}")

    def numbers(self) -> list[int]:
        """Return the numbers of all generations that were pushed, ascending."""
        found = map(_NUMBER.fullmatch, self.storage.names("generations"))
        return sorted(int(match[1]) for match in found if match)

    def pull(
        self, generations: Generations, number: int, *, progress: Progress | None = None
    ) -> Composition:
        """Download a generation to a home, under its own number; nothing else there changes.

        Only objects that the home does not have completely are transferred. Each is hashed, and
        the home verifies the whole again as a generation before the generation exists there.

        Args:
            generations: The home's generations.
            number: The number of the generation.
            progress: Called as objects arrive.

        Raises:
            UnknownNameError: If it was never pushed.
            IntegrityError: If the download differs from what was pushed.
            StoreError: If the store cannot be reached, or the home cannot be written.
        """
        document = self._require_document(number)
        missing = {
            digest: files
            for digest, files in document.packages.items()
            if not _has_package(generations, digest, files)
        }
        if not missing and (have := _whole_record(generations, document)) is not None:
            return have
        wanted = [*document.files.values(), *(s for f in missing.values() for s in f.values())]
        total, done = sum(document.sizes[sha] for sha in wanted), 0

        def get(sha: str) -> bytes:
            nonlocal done
            data = self._object(sha, size=document.sizes[sha])
            done += len(data)
            if progress is not None:
                progress(done, total)
            return data

        with generations.writer() as writer:
            for digest, files in missing.items():
                generations.store.put(
                    {name: get(sha) for name, sha in files.items()}, digest=digest
                )
            own = {name: get(sha) for name, sha in document.files.items()}
            return generations.receive(number, own, writer=writer)

    def _object(self, sha: str, *, size: int) -> bytes:
        data = None
        with suppress(RefusedFileError):
            data = self.storage.read(f"objects/{sha}", limit=size)
        if data is None or (found := hashlib.sha256(data).hexdigest()) != sha:
            raise redhost.errors.IntegrityError(
                f"an object of {self.storage.url} is damaged",
                expected=f"sha256:{sha[:12]}…",
                found="nothing" if data is None else f"sha256:{found[:12]}…",
                hint=f"Remove objects/{sha} there, then push again from a home that has it.",
            )
        return data

    def gc(self, keep: int, *, dry_run: bool = False) -> GcReport:
        """Remove generations that no stage has served recently, and objects that only they need.

        A concurrent push may lose objects; `promote` then refuses that generation by name.

        Args:
            keep: How many last entries of each stage's log, and last pushed generations, to keep.
            dry_run: Remove nothing.
        """
        self.require()
        numbers = self.numbers()
        stay = set(numbers[-max(1, keep) :])
        for log in self.stages.values():
            entries = map(log.read, log.sequences()[-max(1, keep) :])
            stay |= {e.generation for e in entries if e is not None and e.generation is not None}
        gone = tuple(n for n in numbers if n not in stay)
        if not dry_run:
            for number in gone:
                self.storage.remove(_document(number))
        left = [n for n in numbers if n in stay]
        documents = [d for d in map(self.document, left) if d is not None]
        needed = frozenset[str]().union(*(d.objects() for d in documents))
        objects = tuple(x for x in self.storage.names("objects") if x not in needed)
        if not dry_run:
            for sha in objects:
                self.storage.remove(f"objects/{sha}")
        return GcReport(generations=gone, objects=len(objects))

    # -- stages -----------------------------------------------------------------------------------

    def promote(
        self,
        number: int | None,
        *,
        stage: str = PRODUCTION,
        after: StageEntry | Literal["last"] | None = "last",
        share: float = 0.0,
        mirror: bool = False,
        why: str = "",
    ) -> StageEntry:
        """Make a stage serve a generation from now on.

        Args:
            number: The generation, which was pushed; None ends a canary.
            stage: ``production`` or ``canary``.
            after: The last entry that the caller has seen, None for an empty log; ``last`` reads
                it now.
            share: For a canary: the share of the requests that it answers, 0–1.
            mirror: For a canary: whether it also receives all other requests, for comparison.
            why: The reason, for the history.

        Raises:
            UsageError: If the arguments do not fit together.
            StoreError: If there is no store of a fleet, or it cannot be reached.
            UnknownNameError: If the generation was never pushed.
            IntegrityError: If objects of it are missing.
            ContractError: If the store has a list that revokes something in it.
            StaleGenerationError: If another writer was first.
        """
        log = self.stages[stage]
        if number is None and stage == PRODUCTION:
            raise redhost.UsageError("production serves a generation", expected="its number")
        if stage == PRODUCTION and (share or mirror):
            raise redhost.UsageError("production answers every request", expected="no share of it")
        self.require()
        document = None if number is None else self._require_whole(number)
        if document is not None:
            self._refuse_revoked(document)
        digest = "" if document is None else document.digest
        last = log.last() if after == "last" else after
        entry = StageEntry(
            sequence=1,
            generation=number,
            digest=digest,
            share=share,
            mirror=mirror,
            why=clipped(why),
        )
        return log.append(entry, after=last)

    def _require_document(self, number: int) -> GenerationDocument:
        if (document := self.document(number)) is None:
            self.require()
            raise redhost.errors.UnknownNameError(
                "generation", str(number), map(str, self.numbers())
            )
        return document

    def _require_whole(self, number: int) -> GenerationDocument:
        """Return a generation's document after checking that all its objects exist."""
        document = self._require_document(number)
        if missing := document.objects() - set(self.storage.names("objects")):
            raise redhost.errors.IntegrityError(
                f"generation {number} of {self.storage.url} is not whole",
                expected=f"{len(document.objects())} objects",
                found=f"{len(missing)} of them missing",
                hint="Push it again from a home that has it.",
            )
        return document

    def _refuse_revoked(self, document: GenerationDocument) -> None:
        """Refuse a generation with something that no replica would serve."""
        if (data := self.storage.read(REVOKED)) is None:
            return
        revoked = self._decoded(data, RevokedDocument).by_digest()
        if gone := sorted(document.packages.keys() & revoked.keys()):
            entry = revoked[gone[0]]
            raise redhost.errors.ContractError(
                f"generation {document.number} was not promoted: {entry} is revoked",
                found=f"{entry.reason} ({entry.revoked_at})",
                hint="Promote one without it: 'redhost recompose', then 'redhost push'.",
            )

    def previous(self, stage: str = PRODUCTION) -> int:
        """Return the generation that a stage served before the current one.

        Raises:
            StoreError: If there is no store of a fleet, or it cannot be reached.
            MissingError: If there is none.
        """
        self.require()
        log = self.stages[stage]
        entries = (log.read(sequence) for sequence in reversed(log.sequences()))
        served = [e.generation for e in entries if e is not None and e.generation is not None]
        for number in served[1:]:
            if number != served[0]:
                return number
        raise redhost.MissingError(
            f"{stage} of {self.storage.url} has served no other generation",
            hint="See 'redhost fleet history'.",
        )

    # -- replicas ---------------------------------------------------------------------------------

    def report(self, report: ReplicaReport) -> None:
        """Write a replica's report."""
        self.storage.write(f"replicas/{report.replica}.json", encode(report))

    def report_of(self, replica: str) -> ReplicaReport | None:
        """Return a replica's last report; None before the first, or if it is refused."""
        with suppress(RefusedFileError):
            return read_report(self.storage, f"{replica}.json")
        return None

    def reports(self) -> list[ReplicaReport]:
        """Return the replicas' last reports, by id; refused reports are left out."""
        return [*self.read_reports().reports]

    def read_reports(self, canary: StageEntry | None = None) -> Reports:
        """Return the replicas' last reports, and those that are refused.

        Args:
            canary: The canary's entry, if counts are to be compared with the time since then.
        """
        return read_reports(self.storage, canary)

    def forget(self, replica: str) -> None:
        """Remove a replica's report; a live replica writes a new one."""
        self.storage.remove(f"replicas/{replica}.json")


def _read(
    generations: Generations, number: int
) -> tuple[GenerationDocument, Iterator[tuple[str, bytes]]]:
    """Return the document of a home's generation, verified, and an iterator of its objects."""
    record = generations.load(number)
    store, sizes = generations.store, dict[str, int]()

    def shas(files: dict[str, bytes]) -> dict[str, str]:
        found = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
        sizes.update({sha: len(files[name]) for name, sha in found.items()})
        return found

    for member in record.experts:
        store.expert(member.digest, name=member.id)
    if record.backbone.digest:
        store.backbone(record.backbone.digest, name=record.backbone.id)
    own = {name: generations.file(record, name) for name in record.files}
    own[COMPOSITION] = generations.record(number)
    document = GenerationDocument(
        number=number,
        digest=record.digest,
        files=shas(own),
        packages={digest: shas(store.get(digest)) for digest in sorted(record.digests())},
        sizes=sizes,
    )

    def objects() -> Iterator[tuple[str, bytes]]:
        yield from ((sha, own[name]) for name, sha in document.files.items())
        for digest, files in document.packages.items():
            yield from ((sha, store.file(digest, name)) for name, sha in files.items())

    return document, objects()


def _has_package(generations: Generations, digest: str, files: Collection[str]) -> bool:
    """Return whether a home has every byte of a package, whose files have these names."""
    store = generations.store
    read = store.backbone if BACKBONE in files else store.expert
    with suppress(redhost.RedhostError):
        read(digest, name=digest[:12])
        return True
    return False


def _whole_record(generations: Generations, document: GenerationDocument) -> Composition | None:
    """Return the record of a pushed generation if a home has it and every file of it."""
    with suppress(redhost.RedhostError):
        record = generations.load(document.number)
        for name in record.files:
            generations.file(record, name)
        return record if record.digest == document.digest else None
    return None


def _document(number: int) -> str:
    return f"generations/{number}.json"


def _merged(known: Revocations, newer: Revocations) -> Revocations:
    """Return the newer list of each key, and what the other one allows."""
    pairs = [*known.lists.items(), *newer.lists.items()]
    lists = dict(sorted(pairs, key=lambda pair: (pair[0], pair[1].serial)))
    return type(known)(lists=lists, allowed=newer.allowed)
