"""The study's setting: a language model, independent authors' adapters for it, and the test texts.

Every adapter is trained alone. One more, of the sum of their ranks, is trained on the union of
their windows in as many steps as all together: authors would have to share their texts for it.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from redhost_generate.tokens import start_of, tokenize
from torch import Tensor

import redhost
from red_lab.adapters import training
from red_lab.adapters.domains import DOMAINS, background, read_texts
from red_lab.progress import shown
from red_lab.red.run import smollm2_file
from redhost.core.training.context import AuthoringContext
from redhost.core.training.new_backbone import BackbonePlan, new_backbone
from redhost.core.types import BackgroundRow

__all__ = ["PROMPT", "Excerpt", "Study", "open_study"]

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
    context = redhost.authoring.open_for_training(folder, cache=work / "cache")
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
