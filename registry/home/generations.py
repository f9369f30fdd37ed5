"""Generations: compositions on disk, numbered and immutable; publish, rollback, gc and purge.

Publishing writes the new generation next to the old ones, complete and synced, and then replaces
``current``. After a kill at any moment the current generation is either the old or the new one, and
complete. ``redhost.lock`` is derived from ``current``. While the two may disagree, a marker file
exists, and the next writer derives the lock again. Apart from that, a lock file that was checked
out is never overwritten.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import Struct

from .. import atomic
from ..errors import (
    ContractError,
    IntegrityError,
    MissingError,
    RedhostError,
    StoreError,
    UnknownNameError,
    short,
)
from ..package.manifest import dumps
from ..package.safetensors_check import sha256_hex
from .composition import (
    COMPOSITION_FILE,
    LOCK,
    Composition,
    Provenance,
    lock_for,
    read_record,
    seal,
)
from .locks import TIMEOUT, Lease, Leases, Writer, WriterLock
from .questions import cache_of, homes_with, nothing_composed, option, question_of, root_of
from .store import Store, is_plain

_MARKER = "lock-is-stale"
_CHOOSE = "Choose a generation with 'redhost rollback N{0}'; 'redhost history{0}' lists them."
_REMOVED = "removed-"
"""Prefix of the empty folder that keeps the number of the last generation removed."""
_NUMBER = re.compile(r"[1-9][0-9]{0,17}")
_CURRENT = re.compile(r"([1-9][0-9]{0,17}) ([0-9a-f]{64})")


class GcReport(Struct, frozen=True):
    """What was removed, or would be.

    Attributes:
        dry_run: Whether nothing was removed.
        generations: Numbers, ascending.
        digests: Packages in the store that only these generations needed.
        bytes: The size of both together.
        held: Leases of live processes on generations that would otherwise be removed.
    """

    dry_run: bool = False
    generations: tuple[int, ...] = ()
    digests: tuple[str, ...] = ()
    bytes: int = 0
    held: tuple[Lease, ...] = ()


class PurgeReport(Struct, frozen=True, kw_only=True):
    """What `drop_copies` removed.

    Attributes:
        digests: The digests of the copies.
        generations: The generations that can no longer be rolled back to.
    """

    digests: tuple[str, ...] = ()
    generations: tuple[int, ...] = ()


class Generations:
    """The published compositions of one home.

    One writer at a time writes to a home and its questions: they share a store.

    Args:
        home: The folder of a project's state, ``.redhost/`` by default, or of one of its questions.
        lock: The writer's lock, if several questions are written to at once; else one of its own.
    """

    def __init__(self, home: Path, *, lock: WriterLock | None = None) -> None:
        self.home = home
        self.folder = home / "generations"
        self.store = Store(home)
        self.leases = Leases(home)
        self._writer_lock = lock or WriterLock(root_of(home))

    def current(self) -> int | None:
        """Return the number of the current generation, or None before the first.

        Raises:
            StoreError: If the file that names it is invalid or damaged: its digest is not that of
                the generation's record.
        """
        path, data = self.home / "current", self.pointer()
        if data is None:
            return None
        text = data.decode("ascii", "replace").strip()
        if (named := _CURRENT.fullmatch(text)) is None:
            raise StoreError(
                f"cannot read {path}",
                expected="a number and a digest",
                found=repr(text[:40]),
                hint=_CHOOSE.format(option(self.home)),
            )
        number, digest = int(named[1]), named[2]
        with suppress(IntegrityError, UnknownNameError):  # reported where it is loaded
            if digest != (right := self.load(number).digest):
                raise StoreError(
                    f"{path} is damaged: it names generation {number} by another digest",
                    expected=short(right),
                    found=short(digest),
                    hint=_CHOOSE.format(option(self.home)),
                )
        return number

    def pointer(self) -> bytes | None:
        """Return the content of the file ``current``; None before the first generation."""
        return atomic.read(self.home / "current")

    def numbers(self, *, removed: bool = False) -> tuple[int, ...]:
        """Return the numbers of all generations on disk, or of removed ones, ascending."""
        prefix = _REMOVED if removed else ""
        names = (path.name.removeprefix(prefix) for path in self.folder.glob(f"{prefix}*"))
        return tuple(sorted(int(name) for name in names if _NUMBER.fullmatch(name)))

    def next_number(self) -> int:
        """Return the number of the next publish: one more than the highest ever used."""
        return max((self.current() or 0, *self.numbers(), *self.numbers(removed=True))) + 1

    def _path(self, number: int) -> Path:
        return self.folder / str(number)

    def load(self, number: int) -> Composition:
        """Return the record of a generation.

        Raises:
            UnknownNameError: If there is no such generation.
            IntegrityError: If its record is damaged, or belongs to another generation.
        """
        return read_record(self.record(number), number=number)

    def record(self, number: int) -> bytes:
        """Return the record of a generation as stored, unchecked; `load` checks it.

        Raises:
            UnknownNameError: If there is no such generation.
            IntegrityError: If the current one is gone.
        """
        data = atomic.read(path := self._path(number) / COMPOSITION_FILE)
        if data is None and (self.pointer() or b"").startswith(b"%d " % number):
            hint = _CHOOSE.format(option(self.home))
            raise IntegrityError(f"{path} of the current generation is gone", hint=hint)
        if data is None:
            raise UnknownNameError("generation", str(number), map(str, self.numbers()))
        return data

    def refusal(self, record: Composition) -> RedhostError | None:
        """Return why a generation may not answer: what of it is revoked; None if it may.

        Raises:
            StoreError: If it is not known what is revoked.
        """
        revoked = self.store.revoked()
        for part in record.parts():
            if entry := revoked.get(part.digest):
                kind = "backbone" if part is record.backbone else "expert"
                return ContractError(
                    f"{kind} {part.id!r} ({part.dist} {part.version}) is revoked",
                    found=entry.why,
                    hint=f"Run 'redhost recompose{option(self.home)}': it composes without.",
                )
        return None

    def file(self, generation: int | Composition, name: str) -> bytes:
        """Return a file of a generation, e.g. ``router.safetensors``, checked against the record.

        Args:
            generation: Its number, or its record if that is already loaded.
            name: The file's name.

        Raises:
            IntegrityError: If it is missing or damaged.
        """
        record = self.load(generation) if isinstance(generation, int) else generation
        data = atomic.read(self._path(record.number) / name)
        sha256 = record.files.get(name, "")
        if data is None or sha256_hex(data) != sha256:
            raise IntegrityError(
                f"generation {record.number} is damaged: {name}",
                expected=short(sha256),
                found="nothing" if data is None else short(sha256_hex(data)),
                hint="Go back with 'redhost rollback N', or compose anew with 'redhost recompose'.",
            )
        return data

    def history(self) -> list[Composition]:
        """Return every generation whose record can be read, ascending."""
        records = []
        for number in self.numbers():
            with suppress(IntegrityError, UnknownNameError):
                records.append(self.load(number))
        return records

    def origins(self) -> dict[str, Provenance]:
        """Return where the parts of all generations came from, by digest: they may return."""
        origins = dict[str, Provenance]()
        for record in self.history():
            backbone = Provenance(
                dist=record.backbone.dist,
                version=record.backbone.version,
                digest=record.backbone.digest,
                wheel=record.backbone.wheel or "",
                source=record.backbone.source or "",
            )
            parts = (*record.experts, backbone)
            origins |= {part.digest: part for part in parts if part.wheel or part.source}
        return origins

    @contextmanager
    def writer(self, *, timeout: float = TIMEOUT) -> Iterator[Writer]:
        """Hold the writer's lock, after removing what a killed writer left.

        Args:
            timeout: Seconds to wait for another writer.

        Raises:
            LockHeldError: If another process is still writing after that.
        """
        nested = self._writer_lock.is_held
        with self._writer_lock.hold(timeout=timeout) as writer:
            if not nested:
                self.sweep(writer=writer)
            yield writer

    def publish(
        self, draft: Composition, files: Mapping[str, bytes], *, writer: Writer
    ) -> Composition:
        """Make a composition the current generation.

        Args:
            draft: The composition; number, parent, created, files and digest are filled in here.
            files: Its other files by name (router weights, receipt).
            writer: Proof that the writer's lock is held, from `writer`.

        Returns:
            The composition as published.

        Raises:
            StoreError: If the store lacks the bytes of a member, or the disk is full or failing.
                The previous generation then stays current.
        """
        self._require(writer)
        self._require_stored(draft)
        number = self.next_number()
        composition = seal(draft, number=number, parent=self.current(), files=files)
        try:
            atomic.write_folder(self._path(number), {**files, COMPOSITION_FILE: dumps(composition)})
            self._point(composition)
        except BaseException:
            with suppress(StoreError):  # the error that kept it from becoming current is raised
                if self.current() != number:
                    atomic.delete_dir(self._path(number))
            raise
        return composition

    def receive(self, number: int, files: Mapping[str, bytes], *, writer: Writer) -> Composition:
        """Add a generation that another home published, under its number; it is not made current.

        Args:
            number: Its number.
            files: All its files by name; the bytes of its members are already in the store.
            writer: Proof that the writer's lock is held, from `writer`.

        Returns:
            Its record. All bytes that it names were read and are correct.

        Raises:
            IntegrityError: If bytes differ from the published ones.
            StoreError: If bytes are missing, or this home has another generation of that number.
        """
        self._require(writer)
        record = read_record(files.get(COMPOSITION_FILE, b""), number=number)
        answers, here = record.settings.get("question"), question_of(self.home)
        if answers != here:
            raise StoreError(
                f"generation {number} was not received: it answers another question",
                expected=str(here or "the default question"),
                found=str(answers or "the default question"),
                hint="Receive it in the home of that question: --question NAME, or none.",
            )
        for name, sha256 in record.files.items():
            if not is_plain(name) or sha256_hex(files.get(name, b"")) != sha256:
                raise IntegrityError(
                    f"generation {number} was not received: {name}",
                    expected=short(sha256),
                    found=short(sha256_hex(files[name])) if name in files else "nothing",
                    hint="Receive it again.",
                )
        self.verify(record)
        with suppress(IntegrityError, UnknownNameError):  # a damaged one is replaced
            if (here := self.load(number).digest) != record.digest:
                raise StoreError(
                    f"this home has another generation {number}",
                    expected=short(record.digest),
                    found=short(here),
                    hint="Receive it in another home (--home DIR).",
                )
        named = {COMPOSITION_FILE, *record.files}
        atomic.write_folder(self._path(number), {n: d for n, d in files.items() if n in named})
        return record

    def verify(self, record: Composition) -> None:
        """Read all bytes of a generation's parts, and verify the hash of each.

        Raises:
            IntegrityError: If bytes differ from the composed ones.
            StoreError: If bytes are missing.
        """
        self._require_stored(record)
        for member in record.experts:
            self.store.expert(member.digest, name=member.id)
        if record.backbone.digest:
            self.store.backbone(record.backbone.digest, name=record.backbone.id)

    def rollback(
        self,
        number: int | None = None,
        *,
        require_plugins: Callable[[Mapping[str, str]], None] | None = None,
    ) -> Composition:
        """Make an older generation current again: one rename, no training.

        Args:
            number: The generation; None means the parent of the current one.
            require_plugins: Raises unless plugins may run, given the digest of each that made a
                part of it (`trust.require_agreed`); with it all bytes are read, which otherwise
                only have to be there.

        Returns:
            The composition that is now current.

        Raises:
            MissingError: If there is no parent, or nothing was ever composed here.
            UnknownNameError: If there is no such generation.
            IntegrityError: If it is damaged.
            StoreError: If the store lacks bytes it needs.
        """
        if not self.folder.is_dir():  # a mistyped home is not created
            raise nothing_composed(self.home)
        with self.writer():
            if number is None:
                if (current := self.current()) is None:
                    raise nothing_composed(self.home)
                if (number := self.load(current).parent) is None:
                    problem = f"generation {current} is the first"
                    raise MissingError(problem, hint="See 'redhost history'.")
            composition = self.load(number)
            for name in composition.files:
                self.file(composition, name)
            (self.verify if require_plugins else self._require_stored)(composition)
            if require_plugins:
                require_plugins(composition.providers)
            self._point(composition)
        return composition

    def gc(self, keep: int, *, dry_run: bool = False) -> GcReport:
        """Remove generations that are not kept, and the stored bytes that only they needed.

        The writer's lock keeps out publishers, and the gate keeps out new leases, so that nothing
        found unneeded becomes needed meanwhile. Generations are removed first: after an
        interruption, every remaining generation still has its bytes. Nothing is written before
        space is freed, so that gc works on a full disk.

        Args:
            keep: How many to keep: the current one, its parent, and so on; at least one. Those
                leased by live processes are kept in addition.
            dry_run: Remove nothing.

        Raises:
            IntegrityError: If a generation to keep is damaged; nothing is removed then.
            MissingError: If nothing was ever composed here.
        """
        if not self.folder.is_dir():  # a mistyped home is not created
            raise nothing_composed(self.home)
        with self._writer_lock.hold() as writer, self.leases.gate():
            self.leases.sweep()
            unneeded = self._unneeded(max(1, keep), dry_run=dry_run)
            if not dry_run:
                with atomic.reporting(self.folder):
                    for number in unneeded.generations:  # renaming needs no disk space
                        atomic.replace(self._path(number), self.folder / f"{_REMOVED}{number}")
                    atomic.sync_folder(self.folder)
                self.store.purge(unneeded.digests)
            self.sweep(writer=writer)  # last: it may write
        return unneeded

    def _empty_removed(self) -> None:
        """Remove the content of removed generations, and their folders.

        The folder of the last generation stays: no later one gets its number.
        """
        removed = self.numbers(removed=True)
        last = max((*self.numbers(), *removed), default=0)
        for number in removed:
            path = self.folder / f"{_REMOVED}{number}"
            if number < last:
                atomic.delete_dir(path)
                continue
            with atomic.reporting(path):
                for file in path.iterdir():
                    atomic.remove_file(file)

    def _unneeded(self, keep: int, *, dry_run: bool) -> GcReport:
        """Return what can be removed while current, ancestors and leased generations stay."""
        stays: dict[int, Composition] = {}
        number, present = self.current(), set(self.numbers())
        while number is not None and number not in stays and len(stays) < keep:
            if stays and number not in present:
                break  # an ancestor that was removed before
            stays[number] = self.load(number)
            number = stays[number].parent
        held = tuple(lease for lease in self.leases.live() if lease.generation not in stays)
        stays |= {lease.generation: self.load(lease.generation) for lease in held}
        needed = self.needed_beside().union(*(c.digests() for c in stays.values()))
        numbers, unneeded = sorted(present - stays.keys()), sorted(self.store.digests() - needed)
        folders = [
            *map(self._path, numbers),
            *(self.store.folder / digest for digest in unneeded),
        ]
        size = sum(p.stat().st_size for f in folders for p in f.rglob("*") if p.is_file())
        return GcReport(dry_run, tuple(numbers), tuple(unneeded), size, held)

    def needed_beside(self) -> frozenset[str]:
        """Return all digests that generations of the other questions with this store need.

        Raises:
            IntegrityError: If one of them is damaged, so that its needs are unknown.
        """
        others = [Generations(home) for home in homes_with(self.home) if home != self.home]
        return frozenset[str]().union(*(g.load(n).digests() for g in others for n in g.numbers()))

    def leftovers(self) -> tuple[str, ...]:
        """Return files of stopped writers, relative to the home; the next writer removes them."""
        left = [p for folder in self._written() for p in folder.glob(f"{atomic.TEMPORARY}*")]
        return tuple(sorted(p.relative_to(root_of(self.home)).as_posix() for p in left))

    def sweep(self, *, writer: Writer) -> None:
        """Remove temporary files of killed writers, and renew a lock file they left stale."""
        self._require(writer)
        for folder in self._written():
            atomic.remove_temporaries(folder)
        self._empty_removed()
        if (self.home / _MARKER).exists():
            with suppress(IntegrityError, UnknownNameError):  # reported where it is loaded
                if (number := self.current()) is not None:
                    atomic.write_atomic(self.home / LOCK, dumps(lock_for(self.load(number))))
            with atomic.reporting(self.home):
                atomic.remove_file(self.home / _MARKER)

    def _written(self) -> tuple[Path, ...]:
        """Return every folder in which a stopped writer may have left something."""
        cache = cache_of(self.home)
        return (
            *(self.home, self.store.folder, self.folder, cache),
            *sorted(path for path in cache.glob("[!.]*") if path.is_dir()),
        )

    def _point(self, composition: Composition) -> None:
        """Replace ``current`` and the lock; restore both if any step fails."""
        paths = (self.home / "current", self.home / LOCK)
        before = [atomic.read(path) for path in paths]
        try:
            atomic.write_atomic(self.home / _MARKER, b"")
            atomic.write_atomic(paths[0], f"{composition.number} {composition.digest}\n".encode())
            atomic.write_atomic(paths[1], dumps(lock_for(composition)))
            with atomic.reporting(self.home):
                atomic.remove_file(self.home / _MARKER)
        except StoreError:
            for path, data in zip(paths, before, strict=True):
                if atomic.read(path) != data:
                    atomic.put_back(path, data)
            atomic.put_back(self.home / _MARKER, None)
            raise

    def _require(self, writer: Writer) -> None:
        if writer.home != self._writer_lock.home or not self._writer_lock.is_held:
            raise StoreError(f"cannot write to {self.home}", expected="the writer's lock held")

    def _require_stored(self, composition: Composition) -> None:
        if refusal := self.refusal(composition):
            raise refusal
        if parts := [p for p in composition.parts() if p.digest and not self.store.has(p.digest)]:
            dists = " ".join(f"{p.dist}=={p.version}" for p in parts)
            raise StoreError(
                "the store lacks bytes of this composition",
                found=", ".join(f"{p.id!r} ({short(p.digest)})" for p in parts),
                hint=f"Run 'pip install {dists}', then 'redhost recompose --accept'.",
            )


def drop_copies(generations: Generations, expert_id: str) -> PurgeReport:
    """Remove every stored copy of an expert, except those that the current generation needs.

    Args:
        generations: The generations of a home.
        expert_id: The id under which it was composed.
    """
    with generations.writer():
        history, current = generations.history(), generations.current()
        copies = {m.digest for c in history for m in c.experts if m.id == expert_id}
        needed = next((c.digests() for c in history if c.number == current), frozenset[str]())
        gone = (copies - needed - generations.needed_beside()) & generations.store.digests()
        generations.store.purge(gone)
        lost = tuple(c.number for c in history if c.digests() & gone)
    return PurgeReport(digests=tuple(sorted(gone)), generations=lost)
