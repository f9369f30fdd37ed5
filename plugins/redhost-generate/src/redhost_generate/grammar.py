"""Which tokens may follow, if the text has to be JSON of a schema.

    w_v ← 0    unless the text and v begin a JSON text of the schema

This comes before all other steps of `sampling`. Because the bus mixes probabilities, the mask is
applied to p. The parser is llguidance (https://github.com/guidance-ai/llguidance), which reads the
vocabulary as bytes. White space is at most one space in a place, so that no text is endless spaces.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from redhost.core.backbones.encoder import TextEncoder
from redhost.core.model.composed import ComposedModel
from redhost.registry.errors import MissingError, UsageError, excerpt
from redhost_generate.tokens import generating_trunk, start_of

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

__all__ = ["Grammar", "JsonGrammar", "read_schema"]

SAMPLE = '{"a": [-1.5, true, null]}'
"""A text that a vocabulary must return byte for byte."""

MOST = 300
"""Most characters of what the parser says."""

CACHED = 4
"""Vocabularies that are remembered: reading one may take a second."""


class Grammar(Protocol):
    """The state of one text that has to have a form.

    Attributes:
        end: The token that ends the text.
    """

    end: int

    @property
    def finished(self) -> bool:
        """Whether the text has its form and has ended."""
        ...

    def mask(self, p: Tensor) -> Tensor:
        """Return p ``(V,)``, 0 for tokens that may not follow."""
        ...

    def accept(self, token: int) -> None:
        """Add a token to the text."""
        ...


class JsonGrammar:
    """The state of one text that has to be JSON of a schema; each text needs its own.

    Args:
        model: A composition on a generating backbone.
        schema: The JSON schema.

    Attributes:
        end: The token that ends the text: the end-of-text token, or else the start token.

    Raises:
        MissingError: If llguidance is not installed.
        UsageError: If the schema is malformed or not supported, or the backbone does not generate,
            or its tokens cannot be read as bytes.
    """

    def __init__(self, model: ComposedModel, schema: Mapping[str, Any]) -> None:
        _require_library()
        trunk = generating_trunk(model)
        end = getattr(trunk.tokenizer, "eos_token_id", None)
        self.end = start_of(trunk) if end is None else int(end)
        self.matcher = _matcher(_vocabulary(trunk, self.end), schema)

    @property
    def finished(self) -> bool:
        """Whether the text is complete JSON of the schema and has ended."""
        return self.matcher.is_stopped() and self.matcher.is_accepting()

    def mask(self, p: Tensor) -> Tensor:
        """Return p ``(V,)``, 0 for tokens that may not follow.

        If the probability of all that may follow is 0 in float32, they are equally probable.

        Raises:
            UsageError: If no token may follow, or the parser's limits are exceeded.
        """
        bits = np.frombuffer(self.matcher.compute_bitmask(), dtype=np.uint8)
        self._require(self.matcher.is_accepting() or not self.matcher.is_stopped())
        allowed = torch.from_numpy(np.unpackbits(bits, count=len(p), bitorder="little")).bool()
        self._require(bool(allowed.any()))
        masked = p.where(allowed, 0)
        return masked if masked.any() else allowed.to(p.dtype)

    def accept(self, token: int) -> None:
        """Add a token to the text.

        Raises:
            UsageError: If it may not follow, or the parser's limits are exceeded.
        """
        self._require(self.matcher.consume_token(token))

    def _require(self, possible: bool) -> None:
        """Refuse a text that cannot go on."""
        if not possible or self.matcher.is_error():
            raise UsageError(
                "the text cannot become JSON of the schema",
                expected="a schema and a vocabulary with which it can",
                found=_first_line(self.matcher.get_error()) or "no token that may follow",
                hint="Simplify the schema.",
            )


def read_schema(path: Path) -> Mapping[str, Any]:
    """Return the JSON schema in a file.

    Raises:
        UsageError: If the file cannot be read, or is not a JSON object.
    """
    found = "no object"
    try:
        schema = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as e:
        schema, found = None, getattr(e, "strerror", None) or _first_line(str(e))
    if not isinstance(schema, dict):
        raise UsageError(
            f"the schema {path} cannot be read",
            expected='a file with one JSON object, such as {"type": "object"}',
            found=found,
            hint="Correct the file, or name another one.",
        )
    return schema


def _require_library() -> None:
    try:
        import llguidance.hf  # noqa: F401
    except ImportError as e:
        hint = "Run: pip install 'redhost-generate[json]'"
        raise MissingError("JSON of a schema needs llguidance", found=str(e), hint=hint) from e


def _matcher(vocabulary: LLTokenizer, schema: Mapping[str, Any]) -> LLMatcher:
    """Return the parser of one text."""
    from llguidance import LLMatcher

    try:
        text = LLMatcher.grammar_from_json_schema(
            json.dumps(schema),
            overrides={  # the schema cannot change them: what is not supported is refused
                "item_separator": ",",
                "key_separator": ":",
                "whitespace_pattern": " ?",
                "lenient": False,
                "coerce_one_of": False,
            },
        )
    except (TypeError, ValueError, RecursionError) as e:
        raise _refusal(_first_line(str(e))) from e
    matcher = LLMatcher(vocabulary, text, log_level=0)
    if matcher.is_error():
        raise _refusal(_first_line(matcher.get_error()))
    return matcher


def _refusal(found: str) -> UsageError:
    return UsageError(
        "the schema cannot be used",
        expected="a JSON schema that llguidance supports",
        found=found,
        hint="Leave out what is named, or see https://github.com/guidance-ai/llguidance.",
    )


def _first_line(text: str) -> str:
    """Return the parser's message, without its state and in one line."""
    return excerpt(" ".join(text.partition("\n<state>")[0].split()), most=MOST)


def _vocabulary(trunk: TextEncoder, end: int) -> LLTokenizer:
    """Return the bytes of a backbone's tokens, as llguidance reads them."""
    try:
        with trunk.lock:
            vocabulary = _read_vocabulary(trunk.tokenizer, end)
    except ValueError as e:
        raise _unreadable(_first_line(str(e))) from e
    read = vocabulary.decode_bytes(trunk.token_ids(SAMPLE, add_special_tokens=False))
    if read.strip() != SAMPLE.encode():
        raise _unreadable(repr(read))
    return vocabulary


def _unreadable(found: str) -> UsageError:
    return UsageError(
        "the backbone's tokens cannot be read as bytes",
        expected=f"a fast tokenizer with a token for each byte of {SAMPLE}",
        found=found,
        hint="Generate without a schema, or use another backbone.",
    )


@lru_cache(maxsize=CACHED)
def _read_vocabulary(tokenizer: Any, end: int) -> LLTokenizer:
    from llguidance.hf import from_tokenizer

    return from_tokenizer(tokenizer, eos_token=end)
