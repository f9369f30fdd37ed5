"""The study's setting: a language model, strangers' adapters of it, and what is judged.

Every adapter is trained alone (`strangers`); what is finished is not trained again.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

import redhost
from red_lab.adapters.domains import DOMAINS, Part, background, read_texts
from red_lab.adapters.joint import shuffled_windows, train_joint
from red_lab.adapters.strangers import language_model, train_stranger, training_windows
from red_lab.progress import shown
from red_lab.red.run import smollm2_file
from redhost.core.backbones.tokens import start_of, tokenize

__all__ = ["PROMPT", "Excerpt", "Study", "open_study"]

PROMPT, LEAST, LONGEST = 64, 80, 128
"""Tokens that are routed, and of an excerpt at least and at most: the rest of it is judged."""

TESTED, VALID = 6, 1
"""Excerpts of a domain to judge on, and of every second one to choose settings on."""

STEPS, EARLY = (48, 24), 9
"""Authors differ in how long they train: so many steps the first ones by name, and the others."""

SHOWN = 24
"""Passages of a card that routers learn from."""

BACKGROUND = 24
"""Passages of the backbone's card that are nobody's."""


@dataclass(frozen=True, kw_only=True)
class Excerpt:
    """The beginning of a passage nobody learnt from.

    Attributes:
        domain: Whose it is.
        ids: Its tokens, the start token first, ``LEAST`` to ``LONGEST`` of them.
        size: Bytes of UTF-8 that the tokens after the prompt stand for.
    """

    domain: str
    ids: tuple[int, ...]
    size: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Study:
    """What everything is measured with.

    Attributes:
        context: The backbone and what goes with it.
        adapters: Where PEFT saved each domain's adapter.
        joint: The same of one adapter of everybody's texts.
        learnt: The windows that it learnt, in order.
        cards: Each domain's passages that routers learn from.
        test: What is judged.
        valid: What settings are chosen on.
    """

    context: redhost.authoring.AuthoringContext
    adapters: Mapping[str, Path]
    joint: Path
    learnt: Tensor
    cards: Mapping[str, Sequence[str]]
    test: Sequence[Excerpt]
    valid: Sequence[Excerpt]


def open_study(work: Path, *, names: Sequence[str] = DOMAINS) -> Study:
    """Open the study, and train what is not trained yet.

    Args:
        work: Where adapters, the backbone's package and features are kept.
        names: The domains.
    """
    torch.set_num_threads(1)
    texts = {name: read_texts(name) for name in names}
    adapters, joint, learnt = _train(work, {name: found.train for name, found in texts.items()})
    folder = _backbone(work / "packages" / "red-backbone-smollm2")
    context = redhost.authoring.open_for_training(folder, cache=work / "cache")

    def excerpts(part: Part, most: int, some: Sequence[str]) -> list[Excerpt]:
        return [e for n in some for e in _excerpts(context, n, texts[n].passages[part], most)]

    return Study(
        context=context,
        adapters=adapters,
        joint=joint,
        learnt=learnt,
        cards={name: found.passages["card"][:SHOWN] for name, found in texts.items()},
        test=excerpts("test", TESTED, names),
        valid=excerpts("valid", VALID, names[::2]),
    )


def _train(work: Path, texts: Mapping[str, str]) -> tuple[dict[str, Path], Path, Tensor]:
    """Train each domain's adapter and the joint one; return where they are, and all windows."""
    model, tokenizer = language_model(dtype=torch.bfloat16)
    steps = {name: STEPS[DOMAINS.index(name) >= EARLY] for name in texts}
    adapters = {name: work / "strangers" / name for name in texts}
    (work / "strangers").mkdir(parents=True, exist_ok=True)
    for name, folder in adapters.items():
        learnt = training_windows(texts[name], tokenizer, steps=steps[name])
        train_stranger(folder, learnt, model=model, progress=shown(name))
    learnt = shuffled_windows(texts, steps, tokenizer)
    joint = train_joint(work / "joint", learnt, model=model, authors=len(adapters))
    return adapters, joint, learnt


def _backbone(project: Path) -> Path:
    if next(project.glob("src/*/backbone.json"), None) is None:
        shutil.rmtree(project, ignore_errors=True)
        redhost.authoring.new_backbone(
            project,
            "smollm2",
            f"gguf:{smollm2_file()}",
            task=redhost.plugins.make_task("generation"),
            background=[redhost.authoring.BackgroundRow(text=t) for t in background(BACKGROUND)],
        )
    return next((project / "src").iterdir())


def _excerpts(
    context: redhost.authoring.AuthoringContext, domain: str, passages: Sequence[str], most: int
) -> list[Excerpt]:
    """Return the first passages that are long enough, cut."""
    trunk, found = context.backbone.trunk, list[Excerpt]()
    for text in passages:
        ids = [start_of(trunk), *tokenize(trunk, text)][:LONGEST]
        if len(ids) >= LEAST and len(found) < most:
            # A token of byte-level pairs is written with one sign for each byte.
            size = sum(map(len, trunk.tokenizer.convert_ids_to_tokens(ids[PROMPT:])))
            found.append(Excerpt(domain=domain, ids=tuple(ids), size=size))
    return found
