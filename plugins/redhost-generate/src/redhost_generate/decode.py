"""Generate text token by token: the encoder's step, the running context, the bus.

Experts that act after the blocks leave the KV cache unchanged, whatever their weights. An adapter
needs a cache of its own: in compositions with adapters the prompt is routed once, and the column
with the largest weight generates alone (`ChosenSession`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from redhost.core.backbones.encoder import TextEncoder
from redhost.core.backbones.interventions import Intervention
from redhost.core.backbones.interventions.layout import intervention_of
from redhost.core.bus.experts import InTrunkExpert
from redhost.core.model.composed import ComposedModel
from redhost.core.types import as_list
from redhost.registry.errors import UnknownNameError, UsageError
from redhost_generate.grammar import Grammar
from redhost_generate.sampling import Sampler, Sampling
from redhost_generate.tokens import (
    RunningContext,
    generating_trunk,
    last_row,
    start_of,
    tokenize,
    update_context,
)

__all__ = [
    "ChosenSession",
    "DecodingSession",
    "Token",
    "TokenReader",
    "generate",
    "routes_once",
    "session_of",
]

UNFINISHED = "\ufffd"
"""What a tokenizer writes for bytes that do not form a character yet."""

BEFORE = 8
"""The number of preceding tokens that are decoded together with a token."""


@dataclass(frozen=True, kw_only=True)
class Token:
    """One generated token.

    Attributes:
        text: The text it adds; empty while a character of several tokens is incomplete.
        id: Its number in the vocabulary.
        probability: p(x_t+1 | x_≤t) of the bus, independent of the temperature.
        weights: α by column: the weight of each expert. If an adapter is composed, these are the
            weights after the prompt, and the column with the largest one generates alone.
    """

    text: str
    id: int
    probability: float
    weights: dict[str, float]


def generate(
    model: ComposedModel,
    prompt: str,
    *,
    max_tokens: int = 100,
    temperature: float = 1.0,
    seed: int = 0,
    expert: str | None = None,
    sampling: Sampling | None = None,
    grammar: Grammar | None = None,
) -> Iterator[Token]:
    """Yield the tokens that follow a prompt, each as soon as it is chosen.

    Generation ends before the tokenizer's end-of-text token, at the model's longest input, or with
    the grammar.

    Args:
        model: A composition on a generating backbone.
        prompt: The text to continue; may be empty.
        max_tokens: The most tokens to generate.
        temperature: T; tokens are drawn from p^(1/T), and 0 takes the most probable.
        seed: The seed of the draws.
        expert: The column that generates alone: an expert's id, or `backbone`; None uses the
            router's weights.
        sampling: Limits on what is drawn, and penalties; None for neither.
        grammar: The form of the text, such as a `JsonGrammar` of its own; None for any. If it is
            not `finished` after the last token, the text ended at a limit and is incomplete.

    Raises:
        InputTypeError: If the prompt is not a text.
        UnknownNameError: If no such expert is composed.
        UsageError: If the backbone does not generate, the prompt is too long for it, a number is
            out of its range, or the grammar is that of another text.
    """
    [prompt] = as_list((prompt,), str, "text")
    if max_tokens < 1:
        raise UsageError("too few tokens", expected="at least 1", found=str(max_tokens))
    if not 0 <= temperature < math.inf:
        raise UsageError(
            "no such temperature", expected="a number from 0 on", found=str(temperature)
        )
    if grammar is not None and grammar.finished:
        raise UsageError(
            "the grammar is that of a text that has ended", expected="one for each text"
        )
    ids = _prompt(generating_trunk(model), prompt)
    session = session_of(model, ids, expert=expert)
    sampler = Sampler(
        ids, temperature=temperature, seed=seed, sampling=sampling or Sampling(), grammar=grammar
    )
    return _continue(session, ids, max_tokens, sampler)


def _prompt(trunk: TextEncoder, prompt: str) -> list[int]:
    ids = [start_of(trunk), *(tokenize(trunk, prompt, whole=True) if prompt else ())]
    if trunk.longest is not None and len(ids) >= trunk.longest:
        raise UsageError(
            "the prompt is too long",
            expected=f"fewer than {trunk.longest} tokens",
            found=str(len(ids)),
        )
    return ids


def _continue(
    session: DecodingSession | ChosenSession,
    ids: list[int],
    max_tokens: int,
    sampler: Sampler,
) -> Iterator[Token]:
    trunk, columns = session.trunk, session.bus.columns
    grammar = sampler.grammar
    end = grammar.end if grammar else getattr(trunk.tokenizer, "eos_token_id", None)
    reader = TokenReader(trunk, ids)
    room = max_tokens if trunk.longest is None else trunk.longest - len(ids)
    for _ in range(min(max_tokens, room)):
        p, alpha = session.step(ids)
        token = sampler.draw(p)
        if token == end:
            return
        yield Token(
            text=reader.read(token),
            id=token,
            probability=float(p[token]),
            weights=dict(zip(columns, alpha.tolist(), strict=True)),
        )
        if grammar is not None and grammar.finished:
            return
        ids = [token]


class TokenReader:
    """Turn token numbers into the text that each token adds, in whole characters.

    The text of a token may depend on the tokens before it: some tokenizers write no space before
    the first word of a text.
    """

    def __init__(self, trunk: TextEncoder, ids: list[int]) -> None:
        self.trunk, self.ids = trunk, ids[-BEFORE:]
        self.shown = self._text()

    def read(self, token: int) -> str:
        """Return the text that a token adds; empty while a character is incomplete."""
        self.ids = [*self.ids, token]
        text = self._text()
        if text.endswith(UNFINISHED):
            return ""
        added, self.ids = text[len(self.shown) :], self.ids[-BEFORE:]
        self.shown = self._text()
        return added

    def _text(self) -> str:
        return str(self.trunk.tokenizer.decode(self.ids, clean_up_tokenization_spaces=False))


def session_of(
    model: ComposedModel, prompt: list[int], *, expert: str | None = None
) -> DecodingSession | ChosenSession:
    """Return the session that continues a prompt.

    Args:
        model: A composition on a generating backbone.
        prompt: The tokens of the prompt, including its start.
        expert: The column that generates alone; None uses the router's weights.

    Raises:
        UnknownNameError: If there is no such column.
    """
    if expert is None and not routes_once(model):
        return DecodingSession(model)
    return ChosenSession(model, prompt, expert=expert)


class DecodingSession:
    """A text in progress: the encoder's KV cache, and the running context.

    Args:
        model: A composition on a generating backbone.
    """

    def __init__(self, model: ComposedModel) -> None:
        self.backbone, self.bus, self.trunk = model.backbone, model.bus, model.backbone.trunk
        self.cache: Any = None
        self.context = RunningContext.empty(self.backbone.width)

    @torch.inference_mode()
    def step(self, ids: list[int]) -> tuple[Tensor, Tensor]:
        """Return p(x_t+1 | x_≤t) ``(V,)`` and α ``(K,)`` after more tokens."""
        with (trunk := self.trunk).lock:
            tokens = torch.tensor([ids], device=trunk.device)
            states, self.cache = trunk.decode_step(tokens, self.cache)
        h = states[0].float().cpu()
        c = h
        for z in torch.nn.functional.layer_norm(h, h.shape[1:], eps=self.backbone.eps):
            self.context, c = update_context(self.context, z)
        p, alpha = self.bus(torch.cat([h[-1], c])[None])
        return p[0], alpha[0]


def routes_once(model: ComposedModel) -> bool:
    """Return whether the prompt is routed once for all tokens, as an adapter has its own cache."""
    return any(segment.own_pass for segment in model.bus.layout.segments)


class ChosenSession:
    """A text that one column generates at weight 1: the top one after its prompt, or a given one.

    Args:
        model: A composition on a generating backbone.
        prompt: The tokens of the prompt, including its start.
        expert: The column; None uses the router's choice.

    Raises:
        UnknownNameError: If there is no such column.
    """

    def __init__(
        self, model: ComposedModel, prompt: list[int], *, expert: str | None = None
    ) -> None:
        self.trunk, self.bus = model.backbone.trunk, model.bus
        self.cache: Any = None
        self.alpha = _weights(model, prompt, expert)
        self.column = int(self.alpha.argmax())
        acts = None
        if self.column < len(self.bus.ids):
            part = self.bus.parts()[self.column]
            step = part.step if isinstance(part, InTrunkExpert) else part
            acts = intervention_of(step, model.backbone)
        self.acts: Intervention | None = acts

    @torch.inference_mode()
    def step(self, ids: list[int]) -> tuple[Tensor, Tensor]:
        """Return p(x_t+1 | x_≤t) ``(V,)`` after more tokens, and α ``(K,)`` of the prompt."""
        trunk, bus, acts = self.trunk, self.bus, self.acts
        with trunk.lock, nullcontext() if acts is None else acts.apply(trunk):
            tokens = torch.tensor([ids], device=trunk.device)
            states, self.cache = trunk.decode_step(tokens, self.cache)
        h = states[0, -1:].float().cpu()
        if acts is not None and bus.classifier is not None:
            return bus.task.head.output(h @ bus.classifier.T)[0], self.alpha
        wide = bus.layout.pad(h)
        return bus.alone(wide, bus.norm(wide), self.column)[0], self.alpha


def _weights(model: ComposedModel, prompt: list[int], expert: str | None) -> Tensor:
    """Return α ``(K,)`` after a prompt, or one-hot weights on a given column."""
    columns = model.bus.columns
    if expert is None:
        with torch.inference_mode():
            backbone = model.backbone
            row = last_row(backbone.trunk, prompt, width=backbone.width, eps=backbone.eps)
            return model.chooser.weights_of(row)[0]
    if expert not in columns:
        raise UnknownNameError("expert", expert, columns)
    return torch.tensor([float(c == expert) for c in columns])
