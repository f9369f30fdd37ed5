"""Compositions on disk: numbered, immutable, with a parent; one file says which is current.

A publish writes the new generation beside the old ones, whole and synced, and then replaces
``current``. A kill at any moment leaves the old or the new generation current, never half of one.
``redhost.lock`` is derived from ``current``; while the two may disagree a marker says so, and the
next writer derives the lock again. A lock that someone checked out is never overwritten otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from . import atomic
from .composition import RECORD, Composition, decode, digests, seal
from .errors import IntegrityError, MissingError, StoreError, UnknownNameError, short
from .garbage import Purged, find_garbage
from .integrity import sha256_hex
from .leases import Leases
from .lock import LOCK, derive
from .manifest import dumps
from .store import Store
from .writer import TIMEOUT, Writer, WriterLock

__all__ = ["Generations"]

_MARKER = "lock-is-stale"
_HIGHEST = "highest"
_NUMBER = re.compile(r"[1-9][0-9]{0,17}")


class Generations:
    """The published compositions of one home.

    Args:
        home: The folder of a project's state, ``.redhost/`` by default.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self.folder = home / "generations"
        self.store = Store(home)
        self.leases = Leases(home)
        self._guard = WriterLock(home)

    def current(self) -> int | None:
        """Return the number of the current generation, or None before the first.

        Raises:
            StoreError: If the file that names it cannot be understood.
        """
        return _number(self.home / "current")

    def numbers(self) -> tuple[int, ...]:
        """Return the numbers of all generations on disk, ascending."""
        if not self.folder.is_dir():
            return ()
        names = (path.name for path in self.folder.iterdir())
        return tuple(sorted(int(name) for name in names if _NUMBER.fullmatch(name)))

    def next_number(self) -> int:
        """Return the number the next publish will use: one more than was ever used."""
        highest = _number(self.folder / _HIGHEST) or 0
        return max((highest, self.current() or 0, *self.numbers())) + 1

    def load(self, number: int) -> Composition:
        """Return the record of a generation.

        Raises:
            UnknownNameError: If there is no such generation.
            IntegrityError: If its record is damaged.
        """
        data = atomic.read(self.folder / str(number) / RECORD)
        if data is None:
            raise UnknownNameError("generation", str(number), map(str, self.numbers()))
        return decode(data, number=number)

    def file(self, number: int, name: str) -> bytes:
        """Return a file of a generation, e.g. ``router.safetensors``, checked against the record.

        Raises:
            IntegrityError: If it is missing or damaged.
        """
        return self._file(self.load(number), name)

    def history(self) -> list[Composition]:
        """Return every generation whose record can be read, ascending."""
        found = []
        for number in self.numbers():
            with suppress(IntegrityError, UnknownNameError):
                found.append(self.load(number))
        return found

    @contextmanager
    def writer(self, *, timeout: float = TIMEOUT) -> Iterator[Writer]:
        """Hold the writer's lock, after sweeping what a killed writer left.

        Args:
            timeout: Seconds to wait for another writer.

        Raises:
            LockHeldError: If another process still writes then.
        """
        nested = self._guard.is_held
        with self._guard.hold(timeout=timeout) as writer:
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
            StoreError: If the bytes of a member are not in the store, or the disk is full or
                failing. The generation that was current before still is.
        """
        self._require(writer)
        self._require_stored(draft)
        number = self.next_number()
        composition = seal(draft, number=number, parent=self.current(), files=files)
        with atomic.reporting(self.folder):
            atomic.make_folder(self.folder)
        try:
            atomic.write_folder(self.folder / str(number), {**files, RECORD: dumps(composition)})
            self._point(composition)
        except BaseException:
            self._withdraw(number)
            raise
        return composition

    def rollback(self, number: int | None = None, *, timeout: float = TIMEOUT) -> Composition:
        """Make an older generation current again: one rename, no training.

        Args:
            number: Which one; None is the parent of the current one.
            timeout: Seconds to wait for another writer.

        Returns:
            The composition that is current now.

        Raises:
            MissingError: If there is no parent to go to.
            UnknownNameError: If there is no such generation.
            IntegrityError: If it is damaged.
            StoreError: If the store lacks bytes it needs.
        """
        with self.writer(timeout=timeout):
            composition = self.load(self._parent() if number is None else number)
            for name in composition.files:
                self._file(composition, name)
            self._require_stored(composition)
            self._point(composition)
        return composition

    def gc(self, keep: int, *, dry_run: bool = False, timeout: float = TIMEOUT) -> Purged:
        """Remove generations that no one will go back to, and the bytes only they needed.

        Publishers are kept out by the writer's lock and new holders by the gate, so that what is
        found unneeded stays so until it is gone. Generations go first: whatever is interrupted,
        every generation that is left still has its bytes.

        Args:
            keep: How many to keep: the current one, its parent, and so on; at least one. What
                live processes hold is kept besides.
            dry_run: Remove nothing.
            timeout: Seconds to wait for another writer.

        Raises:
            IntegrityError: If a generation to keep is damaged: then nothing is removed.
        """
        if not self.home.is_dir():
            return Purged()
        with self.writer(timeout=timeout), self.leases.gate():
            self.leases.sweep()
            purged = self._garbage(max(1, keep))
            if not dry_run:
                self._remember_highest()
                for number in purged.generations:
                    atomic.discard(self.folder / str(number))
                self.store.purge(purged.digests)
        return purged

    def _garbage(self, keep: int) -> Purged:
        young = {c.number: c for c in self._ancestry(keep)}
        held = tuple(x for x in self.leases.live() if x.generation not in young)
        kept = young | {x.generation: self.load(x.generation) for x in held}
        return find_garbage(
            kept.values(),
            generations={n: self.folder / str(n) for n in self.numbers()},
            stored={d: self.store.folder / d for d in self.store.digests()},
            held=held,
        )

    def _ancestry(self, keep: int) -> list[Composition]:
        """Return the current composition and its ancestors that are still here."""
        kept: list[Composition] = []
        number, here = self.current(), set(self.numbers())
        while number in here and number is not None and len(kept) < keep:
            kept.append(self.load(number))
            number = kept[-1].parent
        return kept

    def _remember_highest(self) -> None:
        """Note the highest number, so that no later generation is mistaken for a removed one."""
        if (highest := self.next_number() - 1) > 0:
            atomic.write_atomic(self.folder / _HIGHEST, f"{highest}\n".encode())

    def leftovers(self) -> tuple[str, ...]:
        """Return what stopped writers left, relative to the home; the next writer removes it."""
        found = [p for folder in self._written() for p in folder.glob(f"{atomic.TEMPORARY}*")]
        return tuple(sorted(p.relative_to(self.home).as_posix() for p in found))

    def sweep(self, *, writer: Writer) -> None:
        """Remove temporary files of killed writers, and finish a lock file they left stale."""
        self._require(writer)
        for folder in self._written():
            atomic.sweep(folder)
        if (self.home / _MARKER).exists():
            with suppress(IntegrityError, UnknownNameError):  # reported by who loads it
                if (number := self.current()) is not None:
                    self._write_lock(self.load(number))
            with atomic.reporting(self.home):
                atomic.remove_file(self.home / _MARKER)

    def _written(self) -> tuple[Path, ...]:
        """Return every folder in which a stopped writer may have left something."""
        return (self.home, self.store.folder, self.folder, self.home / "cache")

    def _point(self, composition: Composition) -> None:
        """Replace ``current`` and the lock; put both back when any step fails."""
        paths = (self.home / "current", self.home / LOCK)
        before = [atomic.read(path) for path in paths]
        try:
            atomic.write_atomic(self.home / _MARKER, b"")
            atomic.write_atomic(paths[0], f"{composition.number}\n".encode())
            self._write_lock(composition)
            with atomic.reporting(self.home):
                atomic.remove_file(self.home / _MARKER)
        except StoreError:
            for path, data in zip(paths, before, strict=True):
                if atomic.read(path) != data:
                    atomic.put_back(path, data)
            atomic.put_back(self.home / _MARKER, None)
            raise

    def _withdraw(self, number: int) -> None:
        """Remove a generation that did not become current."""
        with suppress(StoreError):
            if self.current() != number:
                atomic.discard(self.folder / str(number))

    def _write_lock(self, composition: Composition) -> None:
        atomic.write_atomic(self.home / LOCK, dumps(derive(composition)))

    def _file(self, composition: Composition, name: str) -> bytes:
        """Read a file of a generation against the digest in its record."""
        data = atomic.read(self.folder / str(composition.number) / name)
        wanted = composition.files.get(name, "")
        if data is None or sha256_hex(data) != wanted:
            found = "nothing" if data is None else short(sha256_hex(data))
            raise IntegrityError(
                f"generation {composition.number} is damaged: {name}",
                expected=short(wanted),
                found=found,
                hint="Go back with 'redhost rollback N', or compose anew with 'redhost recompose'.",
            )
        return data

    def _parent(self) -> int:
        number = self.current()
        if number is None:
            raise MissingError("nothing is composed yet", hint="Run 'redhost recompose'.")
        parent = self.load(number).parent
        if parent is None:
            raise MissingError(f"generation {number} is the first", hint="See 'redhost history'.")
        return parent

    def _require(self, writer: Writer) -> None:
        if writer.home != self.home or not self._guard.is_held:
            raise StoreError(f"cannot write to {self.home}", expected="the writer's lock held")

    def _require_stored(self, composition: Composition) -> None:
        missing = sorted(d for d in digests(composition) if not self.store.has(d))
        if missing:
            raise StoreError(
                "the store lacks bytes of this composition",
                found=", ".join(map(short, missing)),
                hint="Install the packages again and run 'redhost recompose'.",
            )


def _number(path: Path) -> int | None:
    """Return the number a file holds, None when it is not there."""
    data = atomic.read(path)
    if data is None:
        return None
    text = data.decode("ascii", "replace").strip()
    if not _NUMBER.fullmatch(text):
        hint = "Choose a generation with 'redhost rollback N'."
        raise StoreError(
            f"cannot read {path}", expected="a number", found=repr(text[:40]), hint=hint
        )
    return int(text)
