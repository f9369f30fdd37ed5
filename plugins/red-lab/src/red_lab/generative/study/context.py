"""The backbone, the texts and their states, which are computed once and read part by part.

Shapes: N tokens, T tokens of a passage, D model width, V vocabulary, K domains.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import redhost_generate
import torch
from torch import Tensor

import redhost
from red_lab.generative.corpora import Corpora, Part
from red_lab.generative.study.setting import StudySetting
from red_lab.progress import Bar
from redhost.core.backbones.feature_cache import FeatureCache
from redhost.core.bus.bus import LayerNorm

__all__ = ["PassageTokens", "StudyContext", "draw", "shown", "slices"]

NUMBERS = 2**24
"""Approximate number of logits computed at once, 64 MiB."""


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
        if backbone.classifier is None:
            raise redhost.UsageError(
                f"backbone {backbone.name!r} has no language-model head",
                expected="one that generates text",
                found="no head",
            )
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
        longest = max(map(len, kinds.values()), default=0)
        mixed = [k[n] for n in range(longest) for k in kinds.values() if n < len(k)]
        return self.some(mixed, most=self.setting.background)

    def texts(self, domain: str, part: Part) -> list[str]:
        """Return the passages of a part that fit into its maximum number of tokens."""
        key = (domain, part)
        if key not in self._texts:
            found = self.corpora.texts(domain, part)
            self._texts[key] = self.some(found, most=self.setting.tokens[part])
        return self._texts[key]

    def some(self, texts: Iterable[str], *, most: int) -> list[str]:
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

    def remember(self, parts: Iterable[Part]) -> None:
        """Compute all states that are not cached yet."""
        texts = [t for d in self.domains for p in parts for t in self.texts(d, p)]
        missing = self.cache.missing([*texts, *self.background])
        show = shown("states", total=len(missing))
        step = 32
        for start in range(0, len(missing), step):
            some = missing[start : start + step]
            self.cache.encode(some)
            show(start + len(some))


def draw(tokens: PassageTokens, rows: int, generator: torch.Generator) -> PassageTokens:
    """Return tokens drawn with replacement; their division into passages is dropped."""
    index = torch.randint(len(tokens), (rows,), generator=generator)
    return PassageTokens(h=tokens.h[index], target=tokens.target[index], lengths=(), sizes=())


def slices(rows: int, *, cost: int) -> Iterator[slice]:
    """Yield slices over rows of `cost` numbers each, at most `NUMBERS` at once."""
    step = max(1, NUMBERS // cost)
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def shown(label: str, *, total: int) -> Callable[[int], None]:
    """Return a function that shows a progress bar, or nothing if `total` is 0."""
    bar = Bar(label, total=total)
    return bar.update if total else lambda _: None
