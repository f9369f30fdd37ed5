"""Requests in the format of OpenAI's API, as structs.

A subset of https://platform.openai.com/docs/api-reference: other fields are refused, except those
in `UNSUPPORTED` with a neutral value, and those in `WITHOUT_EFFECT`. `/classify` has the format of
vLLM's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from redhost_serve.problems import HttpProblem
from redhost_serve.wire import (
    MAX_TEXTS,
    MAX_TOKENS,
    Failure,
    SamplingRequest,
    Stop,
    Text,
    stops_of,
)

__all__ = [
    "AnyText",
    "ChatRequest",
    "ClassifyRequest",
    "CompletionRequest",
    "EmbeddingRequest",
    "ErrorDetail",
    "JsonObject",
    "JsonOfSchema",
    "JsonSchema",
    "Message",
    "OpenAiFailure",
    "StreamOptions",
    "TextPart",
    "failure_at",
]

OWN = frozenset({"feedback", "generate", "generations", "route", "traffic"})
"""The first parts of paths under ``/v1`` that OpenAI's API does not have."""

KINDS = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
SERVER = 500

MAX_CHOICES = 16
"""Most choices for a prompt."""

AUTO = "auto"
"""Another name of the model that answers the default question."""

BACKBONE = "backbone"
"""The column without an expert."""

UNSUPPORTED: dict[str, tuple[object, ...]] = {
    "best_of": (None, 1),
    "logit_bias": (None, {}),
    "suffix": (None, ""),
    "echo": (None, False),
    "tools": (None, []),
    "functions": (None, []),
    "top_logprobs": (None, 0),
    "dimensions": (None,),
    "audio": (None,),
    "function_call": (None, "none", "auto"),
    "modalities": (None, ["text"]),
    "parallel_tool_calls": (None, True, False),
    "prediction": (None,),
    "reasoning_effort": (None,),
    "service_tier": (None, "auto", "default"),
    "store": (None, False),
    "tool_choice": (None, "none", "auto"),
    "verbosity": (None, "medium"),
    "web_search_options": (None,),
}
"""Fields that are not supported, with the neutral values that are accepted."""

WITHOUT_EFFECT = frozenset(
    ["metadata", "prompt_cache_key", "prompt_cache_retention", "safety_identifier", "user"]
)
"""Fields of OpenAI's that do not change an answer: any value is accepted."""

Texts = Text | Annotated[list[Text], Meta(min_length=1, max_length=MAX_TEXTS)]


class ErrorDetail(Struct, kw_only=True):
    """What is wrong, for people and for programs."""

    message: str
    type: str
    param: str | None = None
    code: str


class OpenAiFailure(Struct, kw_only=True):
    """The body of every reply of OpenAI's routes that is not 2xx."""

    error: ErrorDetail


def failure_at(path: str, problem: HttpProblem) -> Failure | OpenAiFailure:
    """Return the body of the answer to a problem, as clients of a path read it.

    Args:
        path: The path, without the prefix of a proxy.
        problem: The problem.
    """
    _, first, *rest = f"{path}//".split("/", 3)
    if first != "v1" or rest[0] in OWN:
        return Failure(error=problem.reason)
    other = "api_error" if problem.status >= SERVER else "invalid_request_error"
    kind = KINDS.get(problem.status, other)
    detail = ErrorDetail(message=problem.reason, type=kind, code=problem.code)
    return OpenAiFailure(error=detail)


class StreamOptions(Struct, kw_only=True, forbid_unknown_fields=True):
    """What a stream contains besides its tokens.

    Attributes:
        include_usage: Whether its last event has the number of tokens.
        include_obfuscation: Not supported: only false, which is what it does.
    """

    include_usage: bool | None = False
    include_obfuscation: bool | None = False

    def __post_init__(self) -> None:
        """Refuse what is not supported."""
        _refuse_unless(not self.include_obfuscation, "include_obfuscation")


class AnyText(Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="text"):
    """Any text."""


class JsonObject(
    Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="json_object"
):
    """A JSON object."""


class JsonSchema(Struct, kw_only=True, forbid_unknown_fields=True):
    """A JSON schema; it is always followed strictly.

    Attributes:
        schema: The schema.
        name: Its name, which changes nothing.
        description: What it is for, which changes nothing.
        strict: Whether it is followed strictly, which changes nothing.
    """

    schema: dict[str, Any]
    name: str | None = None
    description: str | None = None
    strict: bool | None = None


class JsonOfSchema(
    Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="json_schema"
):
    """JSON of a schema."""

    json_schema: JsonSchema


class GenerationRequest(SamplingRequest, kw_only=True):
    """Fields that all requests for a completion share.

    Attributes:
        model: `auto` or `redhost`, or `redhost:QUESTION`: the router weights the experts; an
            expert's id: that expert generates alone.
        n: Number of choices for each prompt.
        stop: Texts at which the answer ends, without them.
        response_format: What the answer is; by default any text.
        stream: Whether each token is sent as soon as it is sampled.
        stream_options: See `StreamOptions`.
    """

    model: str
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = 1
    stop: Stop | None = None
    response_format: AnyText | JsonObject | JsonOfSchema | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        """The texts at which the answer ends."""
        return stops_of(self.stop)

    @property
    def schema(self) -> Mapping[str, Any] | None:
        """The JSON schema of the answer; None for any text."""
        form = self.response_format
        if isinstance(form, JsonOfSchema):
            return form.json_schema.schema
        return {"type": "object"} if isinstance(form, JsonObject) else None


class CompletionRequest(GenerationRequest, kw_only=True):
    """A prompt, or several, to continue.

    Attributes:
        prompt: One text or several.
        max_tokens: Maximum number of new tokens for each.
        logprobs: None, or 0 or 1 for log p of the sampled tokens.
    """

    prompt: str | Annotated[list[str], Meta(min_length=1, max_length=MAX_TEXTS)]
    max_tokens: Annotated[int, Meta(ge=1, le=MAX_TOKENS)] | None = 16
    logprobs: Annotated[int, Meta(ge=0, le=1)] | None = None

    @property
    def limit(self) -> int:
        """Maximum number of new tokens for a prompt; OpenAI's default if none is given."""
        return self.max_tokens or 16

    @property
    def prompts(self) -> list[str]:
        """The prompts."""
        return [self.prompt] if isinstance(self.prompt, str) else self.prompt


class TextPart(Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="text"):
    """A part of a message; other kinds of parts are refused."""

    text: str


class Message(Struct, kw_only=True, forbid_unknown_fields=True):
    """One message of a conversation.

    The fields after `content` are not supported: only what is null or empty, as in answers that
    clients send back.
    """

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart] | None
    name: str | None = None
    refusal: str | None = None
    audio: dict[str, Any] | None = None
    annotations: list[Any] | None = None
    function_call: dict[str, Any] | None = None
    tool_calls: list[Any] | None = None

    def __post_init__(self) -> None:
        """Refuse what is not supported."""
        for name in self.__struct_fields__[2:]:
            _refuse_unless(not getattr(self, name), name)

    @property
    def text(self) -> str:
        """Its text; that of several parts is joined by line breaks, as the gateway reads it."""
        parts = self.content or ""  # an answer without a text has none
        return parts if isinstance(parts, str) else "\n".join(part.text for part in parts)


class ChatRequest(GenerationRequest, kw_only=True):
    """A conversation to continue.

    Attributes:
        messages: All messages, the first one first.
        max_tokens: Maximum number of tokens in the answer.
        max_completion_tokens: The newer name of `max_tokens`.
        logprobs: Whether to include log p of the sampled tokens.
    """

    messages: Annotated[list[Message], Meta(min_length=1, max_length=MAX_TEXTS)]
    max_tokens: Annotated[int, Meta(ge=1, le=MAX_TOKENS)] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=1, le=MAX_TOKENS)] | None = None
    logprobs: bool | None = False

    @property
    def limit(self) -> int:
        """Maximum number of tokens in the answer."""
        return self.max_completion_tokens or self.max_tokens or MAX_TOKENS


def _refuse_unless(neutral: bool, name: str) -> None:
    if not neutral:
        raise ValueError(f"this server has no {name!r} here; leave it out")


class EmbeddingRequest(Struct, kw_only=True):
    """Texts to embed.

    Attributes:
        model: `auto` or `redhost`, or `redhost:QUESTION`: the vectors are always the backbone's.
        input: One text or several; token ids are refused.
        encoding_format: ``float``, or ``base64`` of float32, which the official client asks for.
    """

    model: str
    input: Texts
    encoding_format: Literal["float", "base64"] | None = "float"


class ClassifyRequest(Struct, kw_only=True):
    """Texts to answer with labels.

    Attributes:
        model: `auto` or `redhost`, or `redhost:QUESTION`: the composition's answer; an expert's
            id: that expert's own.
        input: One text or several.
        questions: Whether every other question is answered as well, in one pass if possible.
    """

    model: str
    input: Texts
    questions: bool = False


def refuse_unsupported(data: bytes, kind: type[Struct]) -> None:
    """Refuse a request that uses an unsupported or unknown field.

    Args:
        data: Its body; other errors in it are reported when it is decoded.
        kind: The struct of requests of its route.

    Raises:
        HttpProblem: 400, naming the first such field.
    """
    try:
        found: Any = msgspec.json.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return
    if not isinstance(found, dict):
        return
    for name in found.keys() - set(kind.__struct_fields__) - WITHOUT_EFFECT:
        if found[name] not in UNSUPPORTED.get(name, ()):
            raise HttpProblem(400, f"this server has no {name[:64]!r} here; leave it out")
