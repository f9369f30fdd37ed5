"""The texts of the generative study: five domains in five parts each, and texts in no domain.

Documents are assigned to parts as a whole; passages are pieces of them. No passage is in two parts,
and no training passage contains a held-out pair of operands (`red_lab.arithmetic`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from red_lab.generative.documents import Document, Passage, deal, passages
from red_lab.generative.domains import DOMAINS, Domain, read_domain, shipped_split
from red_lab.generative.general import PACKAGES, general_documents
from red_lab.generative.source_package import Find, find

__all__ = ["PARTS", "Corpora", "General", "Part", "Sizes", "read_corpora", "read_general"]

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
        domains: The domains by name.
        passages: Domain → part → passages.
        background: Passages outside every expert's domain.
        sources: Distribution → version.
        digest: Digest over domains, parts and texts.
    """

    domains: Mapping[str, Domain]
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
    sizes = sizes or Sizes()
    domains = {name: read_domain(name, find=find) for name in sorted(names)}
    seen: set[str] = set()
    taken = {name: _parts(domain, sizes=sizes, seen=seen) for name, domain in domains.items()}
    general = read_general(sizes=sizes, find=find, seen=seen)
    sources = {k: v for d in domains.values() for k, v in d.source.items()}
    rows = [(name, part, p) for name, parts in taken.items() for part, p in parts.items()]
    return Corpora(
        domains=domains,
        passages=taken,
        background=general.background,
        sources=dict(sorted({**general.source, **sources}.items())),
        digest=_digest([*rows, ("", "background", general.background)]),
    )


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
    dealt = [
        deal(documents, shares=GENERAL_PARTS) for documents in general_documents(find).values()
    ]
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
        background=tuple(p for found in background for p in found),
        source={name: find(name).version for name in PACKAGES},
        digest=_digest([("", name, found) for name, found in parts.items()]),
    )


def _parts(domain: Domain, *, sizes: Sizes, seen: set[str]) -> dict[Part, tuple[Passage, ...]]:
    """Return the passages of every part; only tests may contain held-out pairs."""
    dealt = deal(domain.documents, shares=PARTS)
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
    data = msgspec.json.encode([(name, part, list(found)) for name, part, found in rows])
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
