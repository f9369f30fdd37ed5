"""Generate text token by token, one text alone or several together."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

from torch import Tensor

from redhost.core.backbones.encoder import TextEncoder
from redhost.core.model.composed import ComposedModel
from redhost.core.types import MAX_SEED, as_list
from redhost.registry.errors import UsageError
from redhost_generate.batch import passes, step_batch
from redhost_generate.grammar import Grammar
from redhost_generate.sampling import Sampler, Sampling
from redhost_generate.sessions import Session, session_of
from redhost_generate.tokens import generating_trunk, start_of, tokenize

__all__ = ["Continuation", "Token", "TokenReader", "generate", "generate_batch", "read_batch"]

UNFINISHED = "\ufffd"
"""What a tokenizer writes for bytes that do not form a character yet."""

READING: Final = "reading"
"""What stands for a token while a prompt is read in parts."""

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
) -> Continuation:
    """Return the tokens that follow a prompt, each chosen when it is asked for.

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
            "no such temperature",
            expected="a number from 0 on",
            found=str(temperature),
            hint="Leave it out for 1.",
        )
    if not 0 <= seed <= MAX_SEED:
        raise UsageError("no such seed", expected=f"from 0 to {MAX_SEED}", found=str(seed))
    if grammar is not None and grammar.finished:
        raise UsageError(
            "the grammar is that of a text that has ended", expected="one for each text"
        )
    ids = _prompt(generating_trunk(model), prompt)
    session = session_of(model, expert=expert)
    sampler = Sampler(
        ids, temperature=temperature, seed=seed, sampling=sampling or Sampling(), grammar=grammar
    )
    return Continuation(session, ids, most=max_tokens, sampler=sampler)


def _prompt(trunk: TextEncoder, prompt: str) -> list[int]:
    start, ids = start_of(trunk), tokenize(trunk, prompt, whole=True) if prompt else []
    if ids[:1] != [start]:  # chat templates begin with it
        ids = [start, *ids]
    if trunk.longest is not None and len(ids) >= trunk.longest:
        raise UsageError(
            "the prompt is too long",
            expected=f"fewer than {trunk.longest} tokens",
            found=str(len(ids)),
        )
    return ids


class Continuation(Iterator[Token]):
    """The tokens that follow a prompt, each chosen when it is asked for.

    Args:
        session: The text in progress; nothing of it is read yet.
        ids: The tokens of its prompt, including its start.
        most: The most tokens to generate.
        sampler: Chooses each token.
    """

    def __init__(self, session: Session, ids: list[int], *, most: int, sampler: Sampler) -> None:
        trunk, grammar = session.trunk, sampler.grammar
        self.session, self.sampler, session.unread = session, sampler, ids
        self.left = most if trunk.longest is None else min(most, trunk.longest - len(ids))
        self.end = grammar.end if grammar else getattr(trunk.tokenizer, "eos_token_id", None)
        self.reader = TokenReader(trunk, ids)

    def __next__(self) -> Token:
        """Return the next token."""
        token: Chosen = READING
        while token == READING:
            [choose] = read_batch([self])
            token = choose()
        if token is None:
            raise StopIteration
        return token

    def choose(self, p: Tensor, alpha: Tensor) -> Token | None:
        """Return a token drawn from p ``(V,)``; None if the text ends before it.

        Args:
            p: p(x_t+1 | x_≤t).
            alpha: α ``(K,)``.
        """
        left, self.left = self.left - 1, 0  # an error ends the text
        number, grammar = self.sampler.draw(p), self.sampler.grammar
        if number == self.end:
            return None
        if grammar is None or not grammar.finished:
            self.left = left
        self.session.unread = [number]
        return Token(
            text=self.reader.read(number),
            id=number,
            probability=float(p[number]),
            weights=dict(zip(self.session.bus.columns, alpha.tolist(), strict=True)),
        )


Chosen = Token | Literal["reading"] | None
"""A token, `READING`, or None after the last token."""


def read_batch(texts: Sequence[Continuation]) -> list[Callable[[], Chosen]]:
    """Read each text's next part, in shared passes; return functions that choose the next tokens.

    A part is the last token, or at most `PASS_TOKENS` tokens of the prompt. A function is to be
    called once. It returns None if its text has ended, `READING` if more of its prompt is to be
    read, and raises the error of its text or of its text's pass. In company, numbers differ from
    those alone by rounding.

    Args:
        texts: Different texts.
    """
    choices: list[Callable[[], Chosen]] = [_nothing] * len(texts)
    going = [n for n, text in enumerate(texts) if text.left > 0]
    sessions = [texts[n].session for n in going]
    for members in passes(sessions):
        try:
            steps = step_batch([sessions[n] for n in members])
        except Exception as e:
            for n in members:
                texts[going[n]].left, choices[going[n]] = 0, partial(_fail, e)
            continue
        for n, step in zip(members, steps, strict=True):
            text = texts[going[n]]
            choices[going[n]] = _reading if step is None else partial(text.choose, *step)
    return choices


def generate_batch(texts: Sequence[Continuation]) -> list[str]:
    """Return what follows each prompt, to its end; the texts share passes until then.

    Args:
        texts: Different texts.
    """
    made, going = [""] * len(texts), [*range(len(texts))]
    while going:
        drawn = [choose() for choose in read_batch([texts[n] for n in going])]
        for n, token in zip(going, drawn, strict=True):
            made[n] += token.text if isinstance(token, Token) else ""
        going = [n for n, token in zip(going, drawn, strict=True) if token is not None]
    return made


def _nothing() -> None:
    """Return no token: the text has ended."""


def _reading() -> Literal["reading"]:
    """Return no token yet."""
    return READING


def _fail(error: Exception) -> None:
    raise error


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
