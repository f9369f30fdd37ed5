"""What goes over the wire in the shape of OpenAI's API: requests as structs, answers as theirs.

https://platform.openai.com/docs/api-reference, as far as a host has it: `UNSUPPORTED` is refused
where it asks for something else than nothing. `/classify` has the shape that vLLM gives it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from redhost_serve.problems import HttpProblem
from redhost_serve.wire import MAX_CHARACTERS, MAX_TEXTS, MAX_TOKENS, Text

__all__ = [
    "ChatRequest",
    "ClassifyRequest",
    "CompletionRequest",
    "EmbeddingRequest",
    "Message",
    "StreamOptions",
]

AUTO = "auto"
"""Another name of the model that answers the home's own question."""

UNSUPPORTED: dict[str, tuple[object, ...]] = {
    "n": (None, 1),
    "best_of": (None, 1),
    "top_p": (None, 1, 1.0),
    "frequency_penalty": (None, 0, 0.0),
    "presence_penalty": (None, 0, 0.0),
    "logit_bias": (None, {}),
    "suffix": (None, ""),
    "echo": (None, False),
    "tools": (None, []),
    "functions": (None, []),
    "response_format": (None, {"type": "text"}),
    "top_logprobs": (None, 0),
    "dimensions": (None,),
}
"""What may be sent and is not there, with the values that ask for nothing."""

Prompt = Annotated[str, Meta(max_length=MAX_CHARACTERS)]
Texts = Text | Annotated[list[Text], Meta(min_length=1, max_length=MAX_TEXTS)]
Stops = Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(max_length=4)]


class StreamOptions(Struct, kw_only=True):
    """Whether the last event of a stream says how many tokens there were."""

    include_usage: bool = False


class GenerationRequest(Struct, kw_only=True):
    """What requests for a completion share.

    Attributes:
        model: `auto` or `redhost`, or `redhost:QUESTION`: the router weighs the experts; an
            expert's id: it goes on alone.
        temperature: T; 0 takes the most probable token.
        seed: Where draws come from.
        stop: Texts at which the answer ends, without them.
        stream: Whether each token is sent as soon as it is chosen.
        stream_options: See `StreamOptions`.
    """

    model: str
    temperature: Annotated[float, Meta(ge=0)] | None = 1.0
    seed: Annotated[int, Meta(ge=0, le=2**53)] | None = 0
    stop: Annotated[str, Meta(min_length=1)] | Stops | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        """The texts at which the answer ends."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())


class CompletionRequest(GenerationRequest, kw_only=True):
    """A prompt, or several, to go on with.

    Attributes:
        prompt: One text or several.
        max_tokens: How many tokens each gets at most.
        logprobs: None, or 0 or 1 for log p of the tokens that were chosen.
    """

    prompt: Prompt | Annotated[list[Prompt], Meta(min_length=1, max_length=MAX_TEXTS)]
    max_tokens: Annotated[int, Meta(ge=1, le=MAX_TOKENS)] | None = 16
    logprobs: Annotated[int, Meta(ge=0, le=1)] | None = None

    @property
    def limit(self) -> int:
        """How many tokens a prompt gets at most; OpenAI's default where none is given."""
        return self.max_tokens or 16

    @property
    def prompts(self) -> list[str]:
        """The prompts."""
        return [self.prompt] if isinstance(self.prompt, str) else self.prompt


class Message(Struct, kw_only=True):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Prompt


class ChatRequest(GenerationRequest, kw_only=True):
    """A conversation to go on with.

    Attributes:
        messages: From the first on.
        max_tokens: How many tokens the answer gets at most.
        max_completion_tokens: The newer name of that.
        logprobs: Whether log p of the tokens that were chosen is wanted.
    """

    messages: Annotated[list[Message], Meta(min_length=1, max_length=MAX_TEXTS)]
    max_tokens: Annotated[int, Meta(ge=1, le=MAX_TOKENS)] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=1, le=MAX_TOKENS)] | None = None
    logprobs: bool | None = False

    @property
    def limit(self) -> int:
        """How many tokens the answer gets at most."""
        return self.max_completion_tokens or self.max_tokens or MAX_TOKENS


class EmbeddingRequest(Struct, kw_only=True):
    """Texts whose vectors are wanted.

    Attributes:
        model: `auto` or `redhost`, or `redhost:QUESTION`: vectors are the backbone's, whoever
            answers.
        input: One text or several; numbers of tokens are refused.
        encoding_format: ``float``, or ``base64`` of float32, which the official client asks for.
    """

    model: str
    input: Texts
    encoding_format: Literal["float", "base64"] | None = "float"


class ClassifyRequest(Struct, kw_only=True):
    """Texts to answer with labels.

    Attributes:
        model: `auto` or `redhost`, or `redhost:QUESTION`: the composed answer; an expert's id: that
            expert's own.
        input: One text or several.
        questions: Whether every other question is answered as well, in one pass where it can be.
    """

    model: str
    input: Texts
    questions: bool = False


def refuse_unsupported(data: bytes) -> None:
    """Check that a request asks for nothing that is not there.

    Args:
        data: Its body; what is wrong with it otherwise is reported where it is decoded.

    Raises:
        HttpProblem: 400, naming the first such field.
    """
    try:
        found: Any = msgspec.json.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return
    if not isinstance(found, dict):
        return
    for name, nothing in UNSUPPORTED.items():
        if name in found and found[name] not in nothing:
            raise HttpProblem(400, f"this server has no {name!r}; leave it out")
