"""Documents and passages: who may learn from what, decided by whole documents.

A document lies in one part, never in two; a passage is a piece of one document.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from red_lab.arithmetic import Split

__all__ = ["Document", "Passage", "cut", "deal", "passages"]


class Document(NamedTuple):
    """One text of a domain, whole; `name` tells it from the domain's others."""

    domain: str
    name: str
    text: str


class Passage(NamedTuple):
    """One training text: a piece of the document called `document`."""

    domain: str
    document: str
    text: str


def deal(
    documents: Iterable[Document], *, shares: Mapping[str, float]
) -> dict[str, list[Document]]:
    """Give every document, whole, to one part.

    In the order of their hashes each document goes to the part that lacks most characters of its
    share; so no part stays empty where documents are few and of very uneven size.

    Args:
        documents: Of one domain, names distinct.
        shares: Part → its share of the domain's characters; they add up to 1.

    Returns:
        Part → its documents, in the order of their hashes.
    """
    ordered = sorted(documents, key=_hash)
    total = sum(len(d.text) for d in ordered)
    lacking = {part: share * total for part, share in shares.items()}
    dealt: dict[str, list[Document]] = {part: [] for part in shares}
    for document in ordered:
        part = max(lacking, key=lambda name: lacking[name])
        lacking[part] -= len(document.text)
        dealt[part].append(document)
    return dealt


def cut(text: str, *, size: int) -> list[str]:
    """Cut a text into consecutive pieces of about ``size`` characters; joined they are the text.

    A piece ends with a line, or with a word where a line is too long; a rest that is shorter than
    a quarter of ``size`` stays with the piece before.
    """
    pieces, last = [""], size // 4
    for bit in _bits(text, size=size):
        if pieces[-1] and len(pieces[-1]) + len(bit) > size:
            pieces.append("")
        pieces[-1] += bit
    if len(pieces) > 1 and len(pieces[-1]) < last:
        pieces[-2:] = ["".join(pieces[-2:])]
    return [piece for piece in pieces if piece]


def passages(
    documents: Sequence[Document], *, size: int, most: int, seen: set[str], held: Split | None
) -> tuple[Passage, ...]:
    """Return passages of documents, one of each in turn, until there are enough characters.

    Args:
        documents: Of one part, in the order to take them.
        size: About how many characters a passage has.
        most: Characters after which nothing more is taken.
        seen: What was taken before; no text is taken twice. What is taken now joins it.
        held: Leave out what contains a pair of operands held out; None keeps all.
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
    """Yield the first passage of every document, then the second of every one, and so on."""
    columns = (cut(document.text, size=size) for document in documents)
    for row in itertools.zip_longest(*columns):
        for document, text in zip(documents, row, strict=True):
            if text is not None:
                yield Passage(document.domain, document.name, text)


def _bits(text: str, *, size: int) -> Iterator[str]:
    """Yield lines, and the words of lines that are longer than ``size``."""
    for line in text.splitlines(keepends=True):
        if len(line) <= size:
            yield line
        else:
            yield from re.split(r"(?<= )", line)


def _hash(document: Document) -> str:
    return hashlib.sha256(f"{document.domain}\n{document.name}".encode()).hexdigest()
