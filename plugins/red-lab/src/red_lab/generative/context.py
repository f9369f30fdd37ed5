"""The study's settings, and its data: a backbone, texts, and their states, computed once.

The searches behind the settings are in `docs/lab-notes.md`, section "Generative experts".
Shapes: N tokens, T tokens of a passage, D model width, V vocabulary, K domains.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import zip_longest
from pathlib import Path

import redhost_generate
import torch
from torch import Tensor

import redhost
from red_lab.generative.corpora import PARTS, Corpora, Part, Sizes
from red_lab.progress import shown
from redhost.core.backbones.feature_cache import FeatureCache
from redhost.core.bus.bus import LayerNorm

__all__ = ["SMOLLM2", "TINY", "PassageTokens", "StudyContext", "StudySetting", "draw", "slices"]

NUMBERS = 2**24
"""Approximate number of logits computed at once, 64 MiB."""

STEP = 32
"""Texts that are encoded between two updates of the progress bar."""


@dataclass(frozen=True, kw_only=True)
class StudySetting:
    """The settings of one study.

    Attributes:
        sizes: Amounts of text to read, in characters.
        tokens: Part → maximum tokens of every domain; a passage that would exceed it is dropped.
        background: Maximum tokens of the background.
        rank: R of an expert; a monolith has K·R.
        learning_rate: AdamW's peak learning rate, for experts and monoliths.
        weight_decay: AdamW's weight decay.
        dropout: Dropout rate on z while an expert or a monolith trains.
        batch: Tokens per step.
        epochs: Epochs of an expert; a monolith processes as many tokens as all experts together.
        off_domain: Weight of ‖W_c Δ‖² on the background.
        half: Whether training multiplies by the head in bfloat16.
        gate_steps: Steps of every router.
        gate_rate: AdamW's peak learning rate, for routers.
        gate_decay: AdamW's weight decay, for routers.
        gate_every: Steps between two evaluations on the gate rows.
        lessons: Steps of the distilled router, each over all fit rows.
        card: Maximum tokens of each part of an expert's card, and of the backbone's.
        divergence: Tokens of a domain whose next-token distributions are compared.
        host_steps: Steps of the product's router, before its minimax game.
        products: Number of seeds that are also measured through packages.
    """

    sizes: Sizes = field(default_factory=Sizes)
    tokens: Mapping[Part, int]
    background: int
    rank: int
    learning_rate: float
    weight_decay: float
    dropout: float
    batch: int
    epochs: int
    off_domain: float
    half: bool
    gate_steps: int = 1000
    gate_rate: float = 5e-3
    gate_decay: float = 0.1
    gate_every: int = 25
    lessons: int = 200
    card: int
    divergence: int = 500
    host_steps: int = 200
    products: int = 1


TINY = StudySetting(
    sizes=Sizes(fit=64_000),
    tokens={"train": 60_000, "valid": 6_000, "fit": 16_000, "gate": 8_000, "test": 12_000},
    background=12_000,
    rank=64,
    learning_rate=1e-2,
    weight_decay=0.1,
    dropout=0.0,
    batch=256,
    epochs=8,
    off_domain=1e-4,
    half=False,
    card=16_000,
    divergence=2_000,
    products=3,
)

SMOLLM2 = StudySetting(
    sizes=Sizes(
        train=56_000, valid=16_000, fit=40_000, gate=20_000, test=32_000, background=32_000
    ),
    tokens={"train": 9_000, "valid": 2_400, "fit": 6_000, "gate": 3_000, "test": 5_000},
    background=4_000,
    rank=64,
    learning_rate=3e-3,
    weight_decay=0.1,
    dropout=0.1,
    batch=128,
    epochs=4,
    off_domain=1e-5,
    half=True,
    card=6_000,
)
"""Sized so that three seeds take less than an hour on two cores."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PassageTokens:
    """The tokens of some passages, a row for each token.

    Attributes:
        h: The states that the tokens are predicted from, ``(N, D)``.
        target: The tokens, ``(N,)``.
        lengths: Tokens of each passage.
        sizes: Bytes of each passage.
    """

    h: Tensor
    target: Tensor
    lengths: tuple[int, ...]
    sizes: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.target)

    @property
    def scale(self) -> float:
        """Bits per byte of one nat per token: N / (bytes · ln 2)."""
        return len(self) / (sum(self.sizes) * math.log(2))

    def by_passage(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Split rows ``(N, …)`` by passage."""
        return torch.split(rows, list(self.lengths))


class StudyContext:
    """The data that all seeds share.

    Args:
        backbone: A bare generating backbone.
        corpora: The texts.
        setting: The study's sizes and training settings.
        folder: The folder of cached states.
    """

    def __init__(
        self, backbone: redhost.Backbone, corpora: Corpora, *, setting: StudySetting, folder: Path
    ) -> None:
        assert backbone.classifier is not None  # noqa: S101  (it generates text)
        self.backbone, self.corpora, self.setting = backbone, corpora, setting
        self.head: Tensor = backbone.classifier
        self.domains = tuple(corpora.passages)
        self.norm = LayerNorm(width=backbone.width, eps=backbone.eps)
        self.features = folder
        self.fingerprint = backbone.fingerprint()
        self.cache = FeatureCache(folder, backbone=backbone, fingerprint=self.fingerprint)
        self._texts: dict[tuple[str, str], list[str]] = {}

    @cached_property
    def learning_head(self) -> Tensor:
        """The head in the precision that training uses."""
        return self.head.bfloat16() if self.setting.half else self.head

    @cached_property
    def background(self) -> list[str]:
        """Texts outside every expert's domain, of every kind in turn."""
        kinds: dict[str, list[str]] = {}
        for passage in self.corpora.background:
            kinds.setdefault(passage.domain, []).append(passage.text)
        in_turn = (text for row in zip_longest(*kinds.values()) for text in row if text)
        return self.fitting(in_turn, most=self.setting.background)

    def texts(self, domain: str, part: Part) -> list[str]:
        """Return the passages of a part that fit into its maximum number of tokens."""
        key = (domain, part)
        if key not in self._texts:
            texts = self.corpora.texts(domain, part)
            self._texts[key] = self.fitting(texts, most=self.setting.tokens[part])
        return self._texts[key]

    def fitting(self, texts: Iterable[str], *, most: int) -> list[str]:
        """Return the first texts, as many as fit into `most` tokens, but at least one."""
        taken, total = list[str](), 0
        for text in texts:
            total += self.count(text)
            if taken and total > most:
                break
            taken.append(text)
        return taken

    def count(self, text: str) -> int:
        """Return the number of tokens of a text."""
        return len(self.backbone.unit_rows([redhost.Row(text=text, label="")]))

    def part(self, domain: str, part: Part) -> PassageTokens:
        """Return the tokens of a part of a domain."""
        return self.tokens(self.texts(domain, part))

    def tokens(self, texts: Sequence[str]) -> PassageTokens:
        """Return the tokens of texts; states that are not cached are computed."""
        rows = [redhost.Row(text=text, label="") for text in texts]
        each = [[int(r.label) for r in self.backbone.unit_rows([row])] for row in rows]
        return PassageTokens(
            h=self.cache.encode(texts),
            target=torch.tensor([token for ids in each for token in ids]),
            lengths=tuple(map(len, each)),
            sizes=tuple(redhost_generate.byte_counts(self.backbone.trunk, texts)),
        )

    def router_input(self, tokens: PassageTokens) -> Tensor:
        """Return the router input [z | c] ``(N, 3·D)``, computed passage by passage."""
        eps = self.backbone.eps
        context = [redhost_generate.contexts(h, eps=eps) for h in tokens.by_passage(tokens.h)]
        return torch.cat([self.norm(tokens.h), torch.cat(context)], dim=1)

    def logits(self, h: Tensor, *, expert: redhost.Expert | None) -> Tensor:
        """Return W_c (h + Δ(z)) ``(N, V)`` of one expert alone, or of none."""
        added: Tensor = h if expert is None else h + expert(self.norm(h))
        return added @ self.head.T

    def remember(self) -> None:
        """Compute all states that are not cached yet."""
        texts = [t for d in self.domains for p in PARTS for t in self.texts(d, p)]
        missing = self.cache.missing([*texts, *self.background])
        show = shown("states")
        for start in range(0, len(missing), STEP):
            self.cache.encode(missing[start : start + STEP])
            show(min(start + STEP, len(missing)), len(missing))


def draw(tokens: PassageTokens, rows: int, generator: torch.Generator) -> PassageTokens:
    """Return tokens drawn with replacement; their division into passages is dropped."""
    index = torch.randint(len(tokens), (rows,), generator=generator)
    return PassageTokens(h=tokens.h[index], target=tokens.target[index], lengths=(), sizes=())


def slices(rows: int, *, cost: int) -> Iterator[slice]:
    """Yield slices over rows of `cost` numbers each, at most `NUMBERS` at once."""
    step = max(1, NUMBERS // cost)
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))
