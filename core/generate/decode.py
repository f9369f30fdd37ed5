"""Go on with a text, token by token: the trunk's step, the causal memory, the bus.

Experts sit above the blocks, so the cache of keys and values is the backbone's own, whoever speaks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...registry.errors import UsageError
from ..answering.composed import Composed
from ..backbones.trunk import Trunk
from .context import Memory, remember
from .spelling import spell, start_of

__all__ = ["Reader", "Token", "Walk", "draw", "generate"]

UNFINISHED = "\ufffd"
"""What a tokenizer writes for bytes that are no character yet."""

BEFORE = 8
"""Tokens before a token that are spelt with it."""


@dataclass(frozen=True, kw_only=True)
class Token:
    """One token that was added to a text.

    Attributes:
        text: What it adds; empty while a character of several tokens is not complete.
        id: Its number in the vocabulary.
        probability: p(x_t+1 | x_≤t) of the bus, whatever the temperature.
        weights: α by column: how much each expert had a say.
    """

    text: str
    id: int
    probability: float
    weights: dict[str, float]


def generate(
    composed: Composed,
    prompt: str,
    *,
    max_tokens: int = 100,
    temperature: float = 1.0,
    seed: int = 0,
) -> Iterator[Token]:
    """Yield the tokens that follow a prompt, each as soon as it is chosen.

    Ends before the tokenizer's end-of-text token, or where the model's longest input does.

    Args:
        composed: A composition on a generating backbone.
        prompt: The text to go on with; may be empty.
        max_tokens: How many at most.
        temperature: T; tokens are drawn from p^(1/T), and 0 takes the most probable.
        seed: Where draws come from.

    Raises:
        UsageError: If the backbone does not generate, the prompt is too long for it, or a number
            is out of its range.
    """
    if max_tokens < 1:
        raise UsageError("too few tokens", expected="at least 1", found=str(max_tokens))
    if not 0 <= temperature < math.inf:
        raise UsageError(
            "no such temperature", expected="a number from 0 on", found=str(temperature)
        )
    if not composed.backbone.generates:
        raise UsageError(
            f"backbone {composed.backbone.name!r} does not generate text",
            expected="one made with 'redhost new-backbone --task generation'",
            found=composed.backbone.task.name,
            hint="Ask it with 'redhost predict'.",
        )
    ids = _prompt(composed.backbone.trunk, prompt)
    return _go_on(composed, ids, max_tokens, temperature, torch.Generator().manual_seed(seed))


def _prompt(trunk: Trunk, prompt: str) -> list[int]:
    ids = [start_of(trunk), *(spell(trunk, prompt, whole=True) if prompt else ())]
    if trunk.longest is not None and len(ids) >= trunk.longest:
        raise UsageError(
            "the prompt is too long",
            expected=f"fewer than {trunk.longest} tokens",
            found=str(len(ids)),
        )
    return ids


def _go_on(
    composed: Composed,
    ids: list[int],
    max_tokens: int,
    temperature: float,
    generator: torch.Generator,
) -> Iterator[Token]:
    trunk = composed.backbone.trunk
    end = getattr(trunk.tokenizer, "eos_token_id", None)
    walk, reader, fresh = Walk(composed), Reader(trunk, ids), ids
    longest = max_tokens if trunk.longest is None else trunk.longest - len(ids)
    for _ in range(min(max_tokens, longest)):
        p, alpha = walk.step(fresh)
        token = draw(p, temperature, generator)
        if token == end:
            return
        yield Token(
            text=reader.read(token),
            id=token,
            probability=float(p[token]),
            weights=dict(zip(composed.bus.columns, alpha.tolist(), strict=True)),
        )
        fresh = [token]


class Reader:
    """Numbers of tokens → the text that each adds, in whole characters.

    What a token spells may hang on those before it: some tokenizers write no space before the
    first word of a text.
    """

    def __init__(self, trunk: Trunk, ids: list[int]) -> None:
        self.trunk, self.ids = trunk, ids[-BEFORE:]
        self.shown = self._spelt()

    def read(self, token: int) -> str:
        """Return what a token adds; nothing while a character is not complete."""
        self.ids = [*self.ids, token]
        told = self._spelt()
        if told.endswith(UNFINISHED):
            return ""
        fresh = told[len(self.shown) :]
        self.ids = self.ids[-BEFORE:]
        self.shown = self._spelt()
        return fresh

    def _spelt(self) -> str:
        return str(self.trunk.tokenizer.decode(self.ids, clean_up_tokenization_spaces=False))


class Walk:
    """A text under way: the trunk's cache of keys and values, and what the router remembers.

    Args:
        composed: A composition on a generating backbone.
    """

    def __init__(self, composed: Composed) -> None:
        self.backbone, self.bus = composed.backbone, composed.bus
        self.cache: Any = None
        self.memory = Memory.empty(self.backbone.width)

    @torch.inference_mode()
    def step(self, ids: list[int]) -> tuple[Tensor, Tensor]:
        """Return p(x_t+1 | x_≤t) ``(V,)`` and α ``(K,)`` after more tokens."""
        trunk = self.backbone.trunk
        with trunk.guard:
            tokens = torch.tensor([ids], device=trunk.device)
            told, self.cache = trunk.follow(tokens, self.cache)
        h = told[0].float().cpu()
        z = torch.nn.functional.layer_norm(h, h.shape[-1:], eps=self.backbone.eps)
        context = z
        for row in z:
            self.memory, context = remember(self.memory, row)
        p, alpha = self.bus(torch.cat([h[-1], context])[None])
        return p[0], alpha[0]


def draw(p: Tensor, temperature: float, generator: torch.Generator) -> int:
    """Draw from p^(1/T) ``(V,)``, by where one uniform number falls among the sums."""
    if temperature == 0:
        return int(p.argmax())
    weights = p if temperature == 1 else (p / p.max()) ** (1 / temperature)
    sums = weights.cumsum(0, dtype=torch.float64)
    at = torch.rand((), generator=generator, dtype=torch.float64) * sums[-1]
    return min(int(torch.searchsorted(sums, at, right=True)), len(p) - 1)
