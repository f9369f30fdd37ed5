"""Documents and passages: whole documents are assigned to training and test parts.

A document is in exactly one part; a passage is a piece of one document.
"""

from __future__ import annotations

import hashlib
import itertools
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from red_lab.arithmetic import Split

__all__ = ["Document", "Passage", "cut", "deal", "hashed", "passages", "sheet", "sheets"]

P = TypeVar("P", bound=str)


class Document(NamedTuple):
    """One whole text of a domain; `name` is unique within the domain."""

    domain: str
    name: str
    text: str


class Passage(NamedTuple):
    """One training text: piece number `place` of the document named `document`."""

    domain: str
    document: str
    place: int
    text: str


def deal(documents: Iterable[Document], *, shares: Mapping[P, float]) -> dict[P, list[Document]]:
    """Assign every document, as a whole, to one part.

    In the order of their hashes, documents go to the part that lacks the most characters of its
    share. Documents that would fill the smallest part on their own come first, longest first, so
    that every part gets documents even if they are few and of very uneven size.

    Args:
        documents: The documents of one domain, with distinct names.
        shares: Part → its fraction of the domain's characters; they sum to 1.

    Returns:
        Part → its documents.
    """
    ordered = sorted(documents, key=lambda d: hashed(f"{d.domain}\n{d.name}"))
    total = sum(len(d.text) for d in ordered)
    large = min(shares.values()) * total
    ordered.sort(key=lambda d: -len(d.text) if len(d.text) > large else 0)
    lacking = {part: share * total for part, share in shares.items()}
    dealt: dict[P, list[Document]] = {part: [] for part in shares}
    for document in ordered:
        part = max(lacking, key=lambda name: lacking[name])
        lacking[part] -= len(document.text)
        dealt[part].append(document)
    return dealt


def cut(text: str, *, size: int) -> list[str]:
    """Cut a text into consecutive pieces of about ``size`` characters; joined they are the text.

    A piece ends at the end of a line, or of a word if a line is too long. A remainder shorter than
    a quarter of ``size`` is added to the piece before.
    """
    chunks, last = [""], size // 4
    for bit in _bits(text, size=size):
        if chunks[-1] and len(chunks[-1]) + len(bit) > size:
            chunks.append("")
        chunks[-1] += bit
    if len(chunks) > 1 and len(chunks[-1]) < last:
        chunks[-2:] = ["".join(chunks[-2:])]
    return [chunk for chunk in chunks if chunk]


def passages(
    documents: Sequence[Document], *, size: int, most: int, seen: set[str], held: Split | None
) -> tuple[Passage, ...]:
    """Return passages of documents, one of each in turn, until there are enough characters.

    Args:
        documents: The documents of one part, in the order to take them.
        size: Approximate number of characters of a passage.
        most: Maximum number of characters; no passage is taken beyond it.
        seen: Texts taken before, which are not taken again; updated in place.
        held: Drop passages that contain a held-out pair of operands; None keeps all.
    """
    taken: list[Passage] = []
    length = 0
    for passage in _in_turn(documents, size=size):
        key = " ".join(passage.text.split())
        if length >= most:
            break
        if not key or key in seen or (held is not None and not held.allows(passage.text)):
            continue
        seen.add(key)
        taken.append(passage)
        length += len(passage.text)
    return tuple(taken)


def _in_turn(documents: Sequence[Document], *, size: int) -> Iterator[Passage]:
    """Yield one passage of every document in turn; within a document the order is random."""
    for row in itertools.zip_longest(*(_shuffled(d, size=size) for d in documents)):
        yield from (passage for passage in row if passage is not None)


def _shuffled(document: Document, *, size: int) -> list[Passage]:
    domain, name, text = document
    found = [Passage(domain, name, i, piece) for i, piece in enumerate(cut(text, size=size))]
    return sorted(found, key=lambda p: hashed(f"{domain}\n{name}\n{p.place}"))


def _bits(text: str, *, size: int) -> Iterator[str]:
    """Yield lines, and the words of lines that are longer than ``size``."""
    for line in text.splitlines(keepends=True):
        if len(line) <= size:
            yield line
        else:
            yield from re.split(r"(?<= )", line)


def hashed(text: str) -> str:
    """Return a sort key that is independent of a text's content."""
    return hashlib.sha256(text.encode()).hexdigest()


Operands = Callable[[random.Random], tuple[int, ...]]


def _number(rng: random.Random) -> int:
    """Return a number of one, two or three digits, each length equally often."""
    return rng.randrange(10 ** rng.randint(1, 3))


def _two(rng: random.Random) -> tuple[int, ...]:
    return _number(rng), _number(rng)


def _falling(rng: random.Random) -> tuple[int, ...]:
    return tuple(sorted(_two(rng), reverse=True))


EXERCISES: dict[str, tuple[tuple[Operands, Callable[..., str]], ...]] = {
    "sums": (
        (_two, lambda a, b: f"{a} + {b} = {a + b}"),
        (_two, lambda a, b: f"What is {a} plus {b}? It is {a + b}."),
    ),
    "differences": (
        (_falling, lambda a, b: f"{a} - {b} = {a - b}"),
        (_falling, lambda a, b: f"What is {a} minus {b}? It is {a - b}."),
    ),
    "products": (
        (
            lambda rng: (_number(rng), rng.randint(0, 12)),
            lambda a, b: f"{a} * {b} = {a * b}",
        ),
        (
            lambda rng: (rng.randint(0, 12), rng.randint(0, 99)),
            lambda a, b: f"What is {a} times {b}? It is {a * b}.",
        ),
    ),
    "quotients": (
        (
            lambda rng: (rng.randint(0, 99), rng.randint(1, 12)),
            lambda a, b: f"{a * b} / {b} = {a}",
        ),
        (
            lambda rng: (_number(rng), rng.randint(2, 12)),
            lambda a, b: f"{a} / {b} = {a // b} remainder {a % b}",
        ),
    ),
    "longer sums": (
        (
            lambda rng: (*_two(rng), _number(rng)),
            lambda a, b, c: f"{a} + {b} + {c} = {a + b} + {c} = {a + b + c}",
        ),
        (
            lambda rng: (_number(rng), rng.randint(2, 12), _number(rng)),
            lambda a, b, c: (
                f"{a} * {b} + {c}: first {a} * {b} = {a * b}, then {a * b} + {c} = {a * b + c}"
            ),
        ),
    ),
}
"""Kind → its two forms: how operands are drawn, and the line they become."""


def sheets(split: Split, *, count: int, seed: int) -> Iterator[Document]:
    """Yield sheets of 20 to 60 exercises, one document per sheet."""
    for number in range(count):
        yield Document("sums", f"sheet {number:04d}", sheet(split, number=number, seed=seed))


def sheet(split: Split, *, number: int, seed: int) -> str:
    """Return one sheet; it depends on the seed and its number alone.

    Every sum and difference is written with its operands next to each other, so that
    `Split.allows` finds each pair; exercises that it refuses are drawn again.
    """
    rng = random.Random(f"sheet {seed} {number}")  # noqa: S311  (no secret)
    names = rng.sample(sorted(EXERCISES), rng.randint(2, len(EXERCISES)))
    lines = [f"Sheet {number}: {', '.join(names)}."]
    lines += [
        f"{place}. {_allowed(rng, split, rng.choice(names))}"
        for place in range(1, rng.randint(20, 60) + 1)
    ]
    return "\n".join(lines) + "\n"


def _allowed(rng: random.Random, split: Split, name: str) -> str:
    while True:
        operands, write = rng.choice(EXERCISES[name])
        line = write(*operands(rng))
        if split.allows(line):
            return line
