"""Requests and replies as structs: they decode requests, encode replies and define the OpenAPI."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

import redhost
from redhost_serve.problems import HttpProblem

if TYPE_CHECKING:
    from redhost_generate import Token as Generated

__all__ = [
    "MAX_CHARACTERS",
    "MAX_TEXTS",
    "MAX_TOKENS",
    "MODEL",
    "Attach",
    "Change",
    "Detach",
    "ExpertTraffic",
    "Failure",
    "Feedback",
    "FeedbackReply",
    "GenerateReply",
    "GenerateRequest",
    "InferReply",
    "InferRequest",
    "LoadRequest",
    "Metadata",
    "ModelMetadata",
    "OutTensor",
    "Parameters",
    "Ready",
    "Replace",
    "RouteReply",
    "RouteRequest",
    "Routed",
    "SamplingRequest",
    "Scored",
    "Served",
    "Stop",
    "TensorMetadata",
    "TextTensor",
    "TrafficReply",
    "Wanted",
    "decode",
    "generate_reply",
    "infer_reply",
    "model_name",
    "route_reply",
    "stops_of",
    "texts_of",
]

MODEL = "redhost"
"""The model that answers the default question, with the served generation."""

MAX_REASON = 300
"""Most characters of what msgspec says of a body."""

STEP = re.compile(r"\.(\w+)|\[(\d+)\]")
"""A step in msgspec's path of a value."""

MAX_TEXTS = 64
MAX_CHARACTERS = 4096
MAX_TOKENS = 4096


def model_name(question: str | None) -> str:
    """Return the name of the model that answers a question; expert ids contain no colon."""
    return MODEL if question is None else f"{MODEL}:{question}"


T = TypeVar("T", bound=Struct)
Text = Annotated[str, Meta(min_length=1, max_length=MAX_CHARACTERS)]
Number = Annotated[int, Meta(ge=1, le=2**53)]
StopText = Annotated[str, Meta(min_length=1)]
Stop = StopText | Annotated[list[StopText], Meta(max_length=4)]
Id = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$(?!\n)")]


class Failure(Struct, kw_only=True):
    """The body of every reply that is not 2xx, but for those of OpenAI's routes."""

    error: str


class Ready(Struct, kw_only=True):
    """Whether the server, or the model, is ready."""

    ready: bool


class Metadata(Struct, kw_only=True):
    """Metadata of the server."""

    name: str
    version: str
    extensions: list[str]


class TensorMetadata(Struct, kw_only=True):
    """Name, type and shape of a tensor; -1 is any size."""

    name: str
    datatype: str
    shape: list[int]


class ModelMetadata(Struct, kw_only=True):
    """Inputs and outputs of the model; its version is the generation."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class TextTensor(Struct, kw_only=True):
    """The texts: one BYTES tensor with as many elements as its shape states."""

    name: Literal["text"]
    datatype: Literal["BYTES"]
    shape: Annotated[
        list[Annotated[int, Meta(ge=1, le=MAX_TEXTS)]], Meta(min_length=1, max_length=2)
    ]
    data: Annotated[list[Text | list[Text]], Meta(min_length=1, max_length=MAX_TEXTS)]


class Wanted(Struct, kw_only=True):
    """An output that the client requests."""

    name: Literal["label", "probability", "value", "weights", "scores"]


class InferRequest(Struct, kw_only=True):
    """An Open Inference Protocol v2 request; unknown keys are ignored."""

    inputs: Annotated[list[TextTensor], Meta(min_length=1, max_length=1)]
    id: Annotated[str, Meta(max_length=200)] = ""
    outputs: Annotated[list[Wanted], Meta(max_length=16)] = []


class OutTensor(Struct, kw_only=True, omit_defaults=True):
    """A tensor of the answer, flattened in row-major order."""

    name: str
    datatype: str
    shape: list[int]
    data: Sequence[str | float]
    parameters: dict[str, Any] = {}


class InferReply(Struct, kw_only=True, omit_defaults=True):
    """The reply; ``model_version`` is the one generation that answered all of it.

    If texts were longer than the backbone's limit, ``parameters`` has ``cut_texts``, their number,
    and ``cut_tokens``, the number of tokens of each that were read.
    """

    model_name: str
    model_version: str
    id: str
    outputs: list[OutTensor]
    parameters: dict[str, int] = {}


class RouteRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """Texts, or prompts, to route.

    Attributes:
        texts: The texts.
        question: The question whose experts are considered; null for the default question.
    """

    texts: Annotated[list[Text], Meta(min_length=1, max_length=MAX_TEXTS)]
    question: Id | None = None


class Routed(Struct, kw_only=True):
    """The route of one text: the expert with the largest weight, and the weight of each."""

    expert: str
    weights: dict[str, float]


class RouteReply(Struct, kw_only=True):
    """The routes of the texts, in their order, by one generation's router."""

    generation: int | None
    routes: list[Routed]


class ExpertTraffic(Struct, kw_only=True):
    """One expert's share of the texts of the last minute.

    Attributes:
        expert: Its id, or ``backbone``.
        texts: Number of texts on which it had the largest weight: its texts.
        share: Its texts as a share of all texts, 0–1.
        weight: Its mean weight over all texts.
        declined: Share of its texts that was declined, 0–1; null if it had none.
        seconds: Mean time in queue and pass of its texts; null if it had none.
    """

    expert: str
    texts: int
    share: float
    weight: float
    declined: float | None
    seconds: float | None


class TrafficReply(Struct, kw_only=True):
    """The traffic of the last minute by expert; no text is kept for it.

    Attributes:
        generation: The served generation.
        window: Length of the window, in seconds.
        texts: Number of texts answered in it.
        experts: The experts with weight, the largest share first.
    """

    generation: int | None
    window: int
    texts: int
    experts: list[ExpertTraffic]


class Feedback(Struct, kw_only=True, forbid_unknown_fields=True):
    """Texts with their right labels, for one question; neither is stored."""

    texts: Annotated[list[Text], Meta(min_length=1, max_length=MAX_TEXTS)]
    labels: Annotated[
        list[Annotated[str, Meta(max_length=MAX_CHARACTERS)]], Meta(max_length=MAX_TEXTS)
    ]
    question: Id | None = None


class Scored(Struct, kw_only=True):
    """The number of texts that a generation answers right."""

    generation: int | None
    right: int
    texts: int


class FeedbackReply(Struct, kw_only=True):
    """The number of right answers by generation; null for the canary if there is none."""

    production: Scored
    canary: Scored | None


Penalty = Annotated[float, Meta(ge=-2, le=2)]


class SamplingRequest(Struct, kw_only=True):
    """How tokens are chosen, in every request for text; a null has the effect of a missing field.

    Attributes:
        temperature: T; 0 takes the most probable token.
        seed: Seed of the sampling, as large as that of `redhost generate`; further choices have the
            following seeds.
        top_p: Only the most probable tokens that together have this probability.
        top_k: Only so many of the most probable tokens; 0 or -1 for no limit. Like the next two
            a field of vLLM's, not of OpenAI's.
        min_p: Only tokens with at least this part of the largest probability.
        repetition_penalty: More than 1 makes tokens of the prompt and the text less probable.
        presence_penalty: Subtracted from log p of tokens that the text contains.
        frequency_penalty: Subtracted from log p for each time that the text contains a token.
    """

    temperature: Annotated[float, Meta(ge=0)] | None = 1.0
    seed: Annotated[int, Meta(ge=0)] | None = 0
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = 1.0
    top_k: Annotated[int, Meta(ge=-1)] | None = 0
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = 0.0
    repetition_penalty: Annotated[float, Meta(gt=0, le=10)] | None = 1.0
    presence_penalty: Penalty | None = 0.0
    frequency_penalty: Penalty | None = 0.0

    def sampled(self, choice: int = 0) -> dict[str, Any]:
        """Return the arguments of `redhost_generate.generate` for a choice."""
        from redhost_generate import Sampling

        sampling = Sampling(
            top_k=max(self.top_k or 0, 0),
            top_p=self.top_p or 1.0,
            min_p=self.min_p or 0.0,
            repetition_penalty=self.repetition_penalty or 1.0,
            presence_penalty=self.presence_penalty or 0.0,
            frequency_penalty=self.frequency_penalty or 0.0,
        )
        temperature = 1.0 if self.temperature is None else self.temperature
        return {
            "temperature": temperature,
            "seed": (self.seed or 0) + choice,
            "sampling": sampling,
        }


class GenerateRequest(SamplingRequest, kw_only=True, forbid_unknown_fields=True):
    """A prompt to continue, as `redhost generate` does with the same parameters.

    Attributes:
        prompt: The text; may be empty, and as long as the model and the limit of bodies allow.
        max_tokens: Maximum number of tokens.
        top_k: Only so many of the most probable tokens; 0 for no limit.
        expert: The expert that continues the prompt alone; null for the router's weights.
        stop: Texts at which the continuation ends, without them: one, or at most four.
        json_schema: The JSON schema of the continuation, which is incomplete if it ends at
            `max_tokens`; null for any text.
        stream: Whether each token is sent as soon as it is sampled, as a server-sent event.
        question: The question whose composition generates; null for the default question.
    """

    prompt: str
    max_tokens: Annotated[int, Meta(ge=1, le=MAX_TOKENS)] = 100
    top_k: Annotated[int, Meta(ge=0)] | None = 0
    expert: Id | None = None
    stop: Stop | None = None
    json_schema: dict[str, Any] | None = None
    stream: bool = False
    question: Id | None = None


def stops_of(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the texts of a field ``stop``."""
    return (stop,) if isinstance(stop, str) else tuple(stop or ())


class Token(Struct, kw_only=True):
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


class GenerateReply(Struct, kw_only=True):
    """The continuation of a prompt, all by one generation.

    Attributes:
        generation: Its number.
        expert: The column with the largest weight after the prompt; if adapters are composed, it
            alone continues the prompt. Null if the text ends at once.
        weights: Weight of each column after the prompt.
        text: The continuation.
        finish_reason: Why it ended: ``length``, at a limit, where JSON of a schema is incomplete;
            or ``stop``.
        tokens: The tokens of the text; empty at the end of a stream, which has sent them.
    """

    generation: int | None
    expert: str | None
    weights: dict[str, float]
    text: str
    finish_reason: Literal["stop", "length"]
    tokens: list[Token] = []


class Change(Struct, kw_only=True, forbid_unknown_fields=True):
    """A swap or a rollback.

    Attributes:
        generation: The generation to serve; null for the home's current one. A rollback ignores it.
        expected_generation: The generation that must be served now; null for no check.
        question: Its question; null for the default question. Ignored if the path names a model.
    """

    generation: Number | None = None
    expected_generation: Number | None = None
    question: Id | None = None


class Attach(Struct, kw_only=True, forbid_unknown_fields=True):
    """An expert to add to the composition.

    Attributes:
        source: The id of an installed expert; never a path.
        expected_generation: The generation that must be served now; null for no check.
        question: The question whose composition it joins; null for the default question.
    """

    source: Id
    expected_generation: Number | None = None
    question: Id | None = None


class Detach(Struct, kw_only=True, forbid_unknown_fields=True):
    """An expert to remove from the composition; it stays installed.

    Attributes:
        id: Its id.
        expected_generation: The generation that must be served now; null for no check.
        question: The question whose composition it leaves; null for the default question.
    """

    id: Id
    expected_generation: Number | None = None
    question: Id | None = None


class Replace(Attach, kw_only=True):
    """An expert that replaces another.

    Attributes:
        id: The id of the expert to remove.
    """

    id: Id


class Parameters(Change, kw_only=True, forbid_unknown_fields=False):
    """A change among parameters of Triton's, which are ignored."""


class LoadRequest(Struct, kw_only=True):
    """A Triton-style load or unload."""

    parameters: Parameters = msgspec.field(default_factory=Parameters)


class Served(Struct, kw_only=True):
    """The generations served after and before a change."""

    generation: int | None
    previous: int | None


def decode(data: bytes, kind: type[T]) -> T:
    """Decode a body.

    Raises:
        HttpProblem: 400, with the location of the error; of the input, names of fields and numbers
            alone are echoed.
    """
    try:
        return msgspec.json.decode(data or b"{}", type=kind)
    except (msgspec.DecodeError, ValueError, RecursionError, OverflowError) as e:
        reason = str(e) if isinstance(e, msgspec.DecodeError) else "it is not UTF-8 JSON"
        if isinstance(e, msgspec.ValidationError):
            reason += _number_at(data, reason)
        shown = "".join(c if c.isprintable() else "?" for c in reason[:MAX_REASON])
        raise HttpProblem(400, f"the body is not what this route reads: {shown}") from None


def _number_at(data: bytes, reason: str) -> str:
    """Return the number, or the size, that a reason of msgspec's is about; empty for others."""
    try:
        found: Any = msgspec.json.decode(data)
        for name, index in STEP.findall(reason.partition(" - at `$")[2]):
            found = found[int(index)] if index else found[name]
    except (LookupError, TypeError, ValueError, RecursionError):  # a name twice, too many digits
        return ""
    if "length" in reason and isinstance(found, str | list):
        found = len(found)
    return f", found {found}" if type(found) in {int, float} else ""


def texts_of(request: InferRequest) -> list[str]:
    """Return the texts of a request.

    Raises:
        HttpProblem: 400, if their number differs from the shape, or is too large.
    """
    [tensor] = request.inputs
    texts: list[str] = []
    for item in tensor.data:
        texts += [item] if isinstance(item, str) else item
    size = 1
    for n in tensor.shape:
        size *= n
    if len(texts) != size:
        raise HttpProblem(400, f"the shape says {size} texts, data holds {len(texts)}")
    if len(texts) > MAX_TEXTS:
        raise HttpProblem(400, f"expected at most {MAX_TEXTS} texts, found {len(texts)}")
    return texts


def route_reply(routes: Sequence[redhost.plugins.Route]) -> RouteReply:
    """Return the reply to a request for routes."""
    return RouteReply(
        generation=routes[0].generation,
        routes=[Routed(expert=r.expert, weights=r.weights) for r in routes],
    )


def generate_reply(
    generation: int | None,
    tokens: Sequence[Generated],
    *,
    weights: Mapping[str, float],
    finish: Literal["stop", "length"],
) -> GenerateReply:
    """Return the reply to a request to continue a prompt.

    Args:
        generation: The generation.
        tokens: The tokens.
        weights: The weights after the prompt.
        finish: Why the text ended.
    """
    return GenerateReply(
        generation=generation,
        expert=max(weights, key=weights.__getitem__) if weights else None,
        weights=dict(weights),
        text="".join(t.text for t in tokens),
        finish_reason=finish,
        tokens=[
            Token(text=t.text, id=t.id, probability=t.probability, weights=t.weights)
            for t in tokens
        ],
    )


def infer_reply(
    request: InferRequest, answers: Sequence[redhost.Answer], *, model: str = MODEL
) -> InferReply:
    """Return the reply to a request, by the model of that name.

    Raises:
        HttpProblem: 400, if it requests an output that this generation does not have.
    """
    made = {tensor.name: tensor for tensor in _outputs(answers)}
    names: list[str] = [w.name for w in request.outputs] or list(made)
    if missing := sorted(set(names) - made.keys()):
        raise HttpProblem(400, f"no output {missing[0]!r} here; there are: {', '.join(made)}")
    cuts = [a.cut for a in answers if a.cut is not None]
    return InferReply(
        model_name=model,
        model_version=str(answers[0].generation),
        id=request.id,
        outputs=[made[name] for name in dict.fromkeys(names)],
        parameters={"cut_texts": len(cuts), "cut_tokens": cuts[0]} if cuts else {},
    )


def _outputs(answers: Sequence[redhost.Answer]) -> list[OutTensor]:
    """Return every output: numeric answers have a value, labels a probability.

    If a text has any number of labels, its label is the set, ``a|b``, or its spans,
    ``0:5:a|9:12:b``, and the scores are the probabilities of the labels. Where `declined` is
    true, no expert's domain has the text, and the label is no answer.
    """
    count, columns = len(answers), list(answers[0].weights)
    numbers = [a.value for a in answers if a.value is not None]
    sure = [a.probability for a in answers if a.probability is not None]
    declined = [a.declined for a in answers]
    made = [
        OutTensor(name="label", datatype="BYTES", shape=[count], data=[a.label for a in answers]),
        OutTensor(name="declined", datatype="BOOL", shape=[count], data=declined),
    ]
    for name, data in (("probability", sure), ("value", numbers)):
        if len(data) == count:
            made.append(OutTensor(name=name, datatype="FP64", shape=[count], data=data))
    weights = [a.weights[c] for a in answers for c in columns]
    made.append(
        OutTensor(
            name="weights",
            datatype="FP64",
            shape=[count, len(columns)],
            data=weights,
            parameters={"columns": columns},
        )
    )
    scores = [a.scores for a in answers if a.scores is not None]
    if len(scores) == count:
        labels = list(scores[0])
        made.append(
            OutTensor(
                name="scores",
                datatype="FP64",
                shape=[count, len(labels)],
                data=[row[y] for row in scores for y in labels],
                parameters={"labels": labels},
            )
        )
    return made
