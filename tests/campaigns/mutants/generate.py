"""The stream of mutants: every kind in turn, each with its own random generator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from random import Random

from mutants.archive import ARCHIVE, RECORD
from mutants.canary import CANARY
from mutants.cards import ROWS
from mutants.manifest import MANIFEST
from mutants.scramble import BLIND, Change
from mutants.subject import KINDS, Subject, info_files, pack, seal
from mutants.tensors import HEADER, NUMBERS

__all__ = ["Mutant", "kinds", "makers", "mutants"]

Maker = Callable[[Subject, Random], Mapping[str, bytes] | bytes]


@dataclass(frozen=True)
class Mutant:
    """One broken copy.

    Attributes:
        number: Its place in the stream.
        target: The broken part: ``weights``, ``manifest``, ``wheel`` and so on.
        kind: The kind of change.
        data: Files by name, or the bytes of a wheel.
        digest: Digest of the good expert.
    """

    number: int
    target: str
    kind: str
    data: Mapping[str, bytes] | bytes
    digest: str

    @property
    def size(self) -> int:
        """Total size in bytes."""
        if isinstance(self.data, bytes):
            return len(self.data)
        return sum(map(len, self.data.values()))


def mutants(count: int, *, seed: int) -> Iterator[Mutant]:
    """Yield mutants; equal calls yield equal mutants.

    Args:
        count: Number of mutants.
        seed: Random seed.
    """
    subjects = [Subject.make(kind) for kind in KINDS]
    tables = [list(makers(subject)) for subject in subjects]
    for number in range(count):
        turn, place = divmod(number, max(map(len, tables)))
        which = (turn + place) % len(subjects)
        target, kind, make = tables[which][place % len(tables[which])]
        data = make(subjects[which], Random(f"{seed} {number}"))
        yield Mutant(number, target, kind, data, subjects[which].digest)


def kinds() -> frozenset[tuple[str, str]]:
    """Return all targets and kinds."""
    return frozenset((t, k) for card in KINDS for t, k, _ in makers(Subject.make(card)))


def makers(subject: Subject) -> Iterator[tuple[str, str, Maker]]:
    """Yield all possible changes to an expert.

    Args:
        subject: The expert.

    Yields:
        Target, kind, and a function that makes such a mutant from a random generator.
    """
    weights, canary, card = "expert.safetensors", "canary.safetensors", subject.card
    tensors = {**HEADER, **NUMBERS, **BLIND}
    rows = {**(ROWS if card.endswith(".jsonl") else {**HEADER, **NUMBERS}), **BLIND}
    for target, name, changes in (
        ("weights", weights, tensors),
        ("canary", canary, tensors),
        ("card", card, rows),
    ):
        for kind, change in changes.items():
            yield target, kind, _file(name, change, sealed=False)
            yield target, f"{kind}, manifest made to fit", _file(name, change, sealed=True)
    for kind, promise in CANARY.items():
        yield "canary", kind, promise
    for kind, change in {**MANIFEST, **BLIND}.items():
        yield "manifest", kind, _file("expert.json", change, sealed=False)
    for kind, make in ARCHIVE.items():
        yield "wheel", kind, make
    for kind, change in BLIND.items():
        yield "wheel", kind, _whole(change)
    for kind, make in RECORD.items():
        yield "RECORD", kind, make
    for kind, change in BLIND.items():
        yield "RECORD", kind, _blind_record(change)


def _file(name: str, change: Change, *, sealed: bool) -> Maker:
    def make(subject: Subject, random: Random) -> Mapping[str, bytes]:
        files = {**subject.files, name: change(subject.files[name], random)}
        return seal(files) if sealed else files

    return make


def _whole(change: Change) -> Maker:
    return lambda subject, random: change(subject.wheel, random)


def _blind_record(change: Change) -> Maker:
    def make(subject: Subject, random: Random) -> bytes:
        info = info_files(subject.files)
        return pack(subject.files, {**info, "RECORD": change(info["RECORD"], random)})

    return make
