"""Text generation in the format of OpenAI's API: choices, usage, server-sent events."""

from __future__ import annotations

import math
import time
import uuid
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import msgspec

import redhost
from redhost_serve.problems import HttpProblem
from redhost_serve.reply import run_in_thread

if TYPE_CHECKING:
    from redhost_generate import Grammar, Token

__all__ = [
    "Completion",
    "Piece",
    "Shape",
    "UntilStop",
    "grammar_of",
    "require_chat_template",
    "require_generating",
    "token_counts",
    "usage",
]


class UntilStop:
    """Streamed text, up to the first stop text.

    A suffix that may be the beginning of a stop text is held back until that is decided.

    Args:
        stops: The stop texts.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.stops, self.held, self.ended = tuple(stops), "", False

    def feed(self, piece: str) -> str:
        """Return the text that can be shown after a further piece; nothing after a stop text."""
        if self.ended:
            return ""
        self.held += piece
        places = [at for s in self.stops if (at := self.held.find(s)) >= 0]
        if places:
            shown, self.held, self.ended = self.held[: min(places)], "", True
            return shown
        begun = max((_overlap(self.held, s) for s in self.stops), default=0)
        keep = len(self.held) - begun
        shown, self.held = self.held[:keep], self.held[keep:]
        return shown

    def rest(self) -> str:
        """Return the text that was held back, once there are no more pieces."""
        shown, self.held = self.held, ""
        return shown


def _overlap(text: str, stop: str) -> int:
    """Return the length of the text's longest suffix that begins a stop text."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One increment of a text.

    Attributes:
        text: The part of it that can be shown.
        start: Number of characters in the tokens before it.
        token: The token; None for text that was held back until the end.
    """

    text: str
    start: int
    token: Token | None = None


@dataclass(kw_only=True, eq=False)
class Completion:
    """One choice in progress.

    Attributes:
        prompt_tokens: Number of tokens in the prompt.
        counted: Whether they are counted here, not with another choice for the same prompt.
        limit: Maximum number of new tokens.
        longest: The model's context in tokens, prompt and start token included; None for no limit.
        stop: Detects the stop texts.
        grammar: The form of the text; None for any.
        tokens: The tokens so far.
        text: Their text, up to a stop text.
    """

    prompt_tokens: int
    counted: bool = True
    limit: int
    longest: int | None
    stop: UntilStop
    grammar: Grammar | None = None
    tokens: list[Token] = field(default_factory=list)
    text: str = ""

    async def chunks(self, tokens: AsyncIterator[Token]) -> AsyncIterator[Piece]:
        """Yield the text that can be shown after each token, and finally the text held back."""
        start = 0
        async for token in tokens:
            self.tokens.append(token)
            shown = self.stop.feed(token.text)
            self.text += shown
            yield Piece(text=shown, start=start, token=token)
            if self.stop.ended:
                return
            start += len(token.text)
        shown = self.stop.rest()
        self.text += shown
        if shown:
            yield Piece(text=shown, start=start)

    async def shown(self, tokens: AsyncIterator[Token]) -> AsyncIterator[Token]:
        """Yield the tokens that can be shown, once they can; of a stop text no character.

        Their texts are `text`: the last one is cut where a stop text begins in it.
        """
        held: deque[Token] = deque()
        length = 0
        async for piece in self.chunks(tokens):
            held += [] if piece.token is None else [piece.token]
            while held and length + len(held[0].text) <= len(self.text):
                token = held.popleft()
                length += len(token.text)
                yield token
        if held and (rest := self.text[length:]):
            yield replace(held[0], text=rest)

    @property
    def finish_reason(self) -> Literal["stop", "length"]:
        """Why it ended: ``length``, or ``stop``: by itself, as complete JSON, at a stop text."""
        if self.grammar is not None and not self.stop.ended:
            return "stop" if self.grammar.finished else "length"
        made, longest = len(self.tokens), self.longest
        full = made >= self.limit
        if longest is not None:  # the prompt's tokens may contain the start token or not
            full |= made + self.prompt_tokens >= longest - 1
        return "length" if full and not self.stop.ended else "stop"

    @property
    def weights(self) -> dict[str, float]:
        """α by column after the prompt."""
        return self.tokens[0].weights if self.tokens else {}


def usage(prompt: int, completion: int = 0) -> dict[str, int]:
    """Return the numbers of tokens read and generated."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The format of completions: texts, or messages.

    Attributes:
        chat: Whether they are messages.
        model: The model's name as the client gave it.
        generation: The generation that generates.
        logprobs: Whether to include log p of the tokens.
    """

    chat: bool
    model: str
    generation: int | None
    logprobs: bool
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, completions: Sequence[Completion]) -> dict[str, Any]:
        """Return the reply if it is not streamed."""
        choices = [
            self._choice(n, c.text, c.tokens, finish=c.finish_reason, part=False)
            for n, c in enumerate(completions)
        ]
        return {
            **self._head("chat.completion" if self.chat else "text_completion"),
            "choices": choices,
            **self._foot(completions),
        }

    def event(self, index: int, piece: Piece) -> bytes:
        """Return the event for one more piece of a choice."""
        made = [] if piece.token is None else [piece.token]
        return self._event(
            [self._choice(index, piece.text, made, finish=None, part=True, start=piece.start)]
        )

    def end(self, index: int, completion: Completion) -> bytes:
        """Return the event with the reason why a choice ended."""
        return self._event(
            [self._choice(index, "", [], finish=completion.finish_reason, part=True)]
        )

    def last(self, completions: Sequence[Completion], *, counted: bool) -> bytes:
        """Return the end of a stream, after an event with the usage if requested."""
        foot = self._event([], **self._foot(completions)) if counted else b""
        return foot + b"data: [DONE]\n\n"

    def _event(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        body = {**self._head(kind), "choices": choices, **more}
        return b"data: %b\n\n" % msgspec.json.encode(body)

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": f"{'chatcmpl' if self.chat else 'cmpl'}-{self.id}",
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": f"generation-{self.generation}",
        }

    def _foot(self, completions: Sequence[Completion]) -> dict[str, Any]:
        counts = usage(
            sum(c.prompt_tokens for c in completions if c.counted),
            sum(len(c.tokens) for c in completions),
        )
        weights = [c.weights for c in completions]
        return {"usage": counts, "redhost": {"generation": self.generation, "weights": weights}}

    def _choice(
        self,
        index: int,
        text: str,
        tokens: Sequence[Token],
        *,
        finish: str | None,
        part: bool,
        start: int = 0,
    ) -> dict[str, Any]:
        made: dict[str, Any] = {"index": index, "finish_reason": finish, "logprobs": None}
        if self.chat:
            message = {"role": "assistant", "content": text}
            made["delta" if part else "message"] = message
        else:
            made["text"] = text
        if self.logprobs and tokens:
            made["logprobs"] = (
                _chat_logprobs(tokens) if self.chat else _text_logprobs(tokens, start=start)
            )
        return made


def _log(token: Token) -> float:
    return math.log(max(token.probability, 1e-45))  # the smallest float32: JSON has no infinity


def _text_logprobs(tokens: Sequence[Token], *, start: int) -> dict[str, Any]:
    starts = [start]
    for token in tokens:
        starts.append(starts[-1] + len(token.text))
    return {
        "tokens": [t.text for t in tokens],
        "token_logprobs": [_log(t) for t in tokens],
        "top_logprobs": None,
        "text_offset": starts[:-1],
    }


def _chat_logprobs(tokens: Sequence[Token]) -> dict[str, Any]:
    return {
        "content": [
            {"token": t.text, "logprob": _log(t), "bytes": [*t.text.encode()], "top_logprobs": []}
            for t in tokens
        ]
    }


async def grammar_of(
    model: redhost.ComposedModel, schema: Mapping[str, Any] | None
) -> Grammar | None:
    """Return the grammar of one text; None without a schema.

    Args:
        model: A composition on a generating backbone.
        schema: The JSON schema; what is not supported is named in the answer.

    Raises:
        HttpProblem: 400, if the schema cannot be used, or llguidance is not installed: clients send
            what ends with 503 again.
    """
    if schema is None:
        return None
    from redhost_generate import JsonGrammar

    make = partial(JsonGrammar, model, schema)
    return await run_in_thread(make, otherwise=400)  # it may take a second


async def token_counts(model: redhost.ComposedModel, texts: Sequence[str]) -> list[int]:
    """Count tokens in a thread: waiting for the tokenizer may take as long as a pass."""
    return await run_in_thread(lambda: model.backbone.token_counts(texts))


def require_generating(model: redhost.ComposedModel, name: str) -> None:
    """Refuse to generate if the backbone answers labels.

    Args:
        model: The composition.
        name: The name that it is served by.

    Raises:
        HttpProblem: 400, naming the routes to use instead.
    """
    if not model.backbone.task.unit.generates:
        raise HttpProblem(
            400,
            f"backbone {model.backbone.name!r} does not generate text; use /classify or "
            f"/v2/models/{name}/infer",
        )


def require_chat_template(model: redhost.ComposedModel) -> None:
    """Refuse a conversation if the backbone has no chat template.

    Raises:
        HttpProblem: 400.
    """
    if not getattr(model.backbone.trunk.tokenizer, "chat_template", None):
        raise HttpProblem(
            400, f"backbone {model.backbone.name!r} has no chat template; use /v1/completions"
        )
