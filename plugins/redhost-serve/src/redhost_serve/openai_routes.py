"""The OpenAI-compatible routes: models, completions, chat, embeddings, classify."""

from __future__ import annotations

import asyncio
import base64
import struct
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing
from itertools import product
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

import redhost
from redhost_serve.completion import (
    Completion,
    Piece,
    Shape,
    UntilStop,
    grammar_of,
    require_chat_template,
    require_generating,
    token_counts,
    usage,
)
from redhost_serve.listing import models
from redhost_serve.openai_wire import (
    AUTO,
    BACKBONE,
    ChatRequest,
    ClassifyRequest,
    CompletionRequest,
    EmbeddingRequest,
    OpenAiFailure,
    failure_at,
    refuse_unsupported,
)
from redhost_serve.problems import HttpProblem
from redhost_serve.reply import (
    EVENTS,
    EventStream,
    event,
    reply,
    request_body_for,
    responses_for,
    run_in_thread,
)
from redhost_serve.service import Service
from redhost_serve.wire import Failure, decode

if TYPE_CHECKING:
    from redhost_generate import Token

__all__ = ["openai_routes"]

S = TypeVar("S", bound=msgspec.Struct)


def openai_routes(service: Service, *, admin: bool) -> APIRouter:
    """Return the routes.

    Args:
        service: The service that answers.
        admin: Whether changes can be made over HTTP.
    """
    answers, routes = OpenAiRoutes(service, admin=admin), APIRouter(tags=["openai"])
    for path, answer, kind in (
        ("/v1/completions", answers.completions, CompletionRequest),
        ("/v1/chat/completions", answers.chat, ChatRequest),
        ("/v1/embeddings", answers.embeddings, EmbeddingRequest),
        ("/classify", answers.classify, ClassifyRequest),
    ):
        failure = Failure if path == "/classify" else OpenAiFailure
        responses = responses_for(dict, 400, 404, 503, failure=failure)
        if issubclass(kind, CompletionRequest | ChatRequest):
            responses[200]["content"][EVENTS] = {"schema": {"type": "string"}}
        routes.add_api_route(
            path,
            answer,
            methods=["POST"],
            responses=responses,
            openapi_extra=request_body_for(kind),
        )
    routes.add_api_route(
        "/v1/models/{name}",
        answers.model,
        responses=responses_for(dict, 404, 503, failure=OpenAiFailure),
    )
    return routes


class OpenAiRoutes:
    """The handlers of the routes.

    Args:
        service: The service that answers.
        admin: Whether changes can be made over HTTP.
    """

    def __init__(self, service: Service, *, admin: bool) -> None:
        self.service, self.admin = service, admin

    async def model(self, name: str) -> Response:
        """Show one model: the composition, or one of its experts."""
        found = await run_in_thread(lambda: models(self.service, admin=self.admin))
        return reply(next((m for m in found if m["id"] == name), None) or _unknown(name))

    async def completions(self, request: Request) -> Response:
        """Continue a prompt, or several."""
        wanted = await _body(request, CompletionRequest)
        service, model, expert = self._named(wanted.model)
        require_generating(model, service.model)
        return await self._go_on(
            request,
            wanted,
            service,
            model,
            wanted.prompts,
            expert=expert,
            shape=Shape(
                chat=False,
                model=wanted.model,
                generation=model.generation,
                logprobs=wanted.logprobs is not None,
            ),
        )

    async def chat(self, request: Request) -> Response:
        """Continue a conversation, formatted by the backbone's own chat template."""
        wanted = await _body(request, ChatRequest)
        service, model, expert = self._named(wanted.model)
        require_generating(model, service.model)
        require_chat_template(model)
        prompt = await service.render(
            model, [{"role": m.role, "content": m.text} for m in wanted.messages]
        )
        return await self._go_on(
            request,
            wanted,
            service,
            model,
            [prompt],
            expert=expert,
            shape=Shape(
                chat=True,
                model=wanted.model,
                generation=model.generation,
                logprobs=bool(wanted.logprobs),
            ),
        )

    async def embeddings(self, request: Request) -> Response:
        """Return the backbone's vectors of texts."""
        wanted = await _body(request, EmbeddingRequest)
        service, _, expert = self._named(wanted.model)
        if expert is not None:
            raise HttpProblem(404, f"vectors come from {service.model!r} alone, for every expert")
        found = await service.embed(_texts(wanted.input))
        packed = wanted.encoding_format == "base64"
        data = [
            {"object": "embedding", "index": n, "embedding": _vector(e.vector, packed=packed)}
            for n, e in enumerate(found)
        ]
        counts = usage(sum(e.tokens for e in found))
        del counts["completion_tokens"]
        body = {"object": "list", "data": data, "model": wanted.model, "usage": counts}
        return reply({**body, "redhost": {"generation": found[0].generation}})

    async def classify(self, request: Request) -> Response:
        """Answer texts with labels: those of the composition, or of a single expert."""
        wanted = await _body(request, ClassifyRequest)
        texts = _texts(wanted.input)
        if wanted.questions:
            if wanted.model not in {AUTO, self.service.model}:
                raise HttpProblem(400, f"all questions are answered by {self.service.model!r}")
            model, expert = self._any_model(), None
            answers = await self.service.ask_all(texts)
        else:
            service, model, expert = self._named(wanted.model)
            if expert == BACKBONE:
                _unknown(expert)  # it has no answer of its own
            answers = await service.ask(texts, each=expert is not None, headers=request.headers)
        data = [{"index": n, **_classified(answer, expert)} for n, answer in enumerate(answers)]
        counts = usage(sum(await token_counts(model, texts)))
        body = {
            "id": f"classify-{uuid.uuid4().hex}",
            "object": "list",
            "created": int(time.time()),
            "model": wanted.model,
            "data": data,
            "usage": counts,
        }
        return reply({**body, "redhost": _generations(answers[0])})

    def _any_model(self) -> redhost.ComposedModel:
        """Return a served generation, the default question's if it is composed."""
        serving = (service for service in self.service.every if service.live.generation)
        return next(serving, self.service).composed

    def _named(self, name: str) -> tuple[Service, redhost.ComposedModel, str | None]:
        """Return the service, the generation and, if the name is an expert's id, the expert.

        Expert ids are unique across questions.
        """
        name = self.service.model if name == AUTO else name
        for service in self.service.every:
            if name == service.model:
                return service, service.composed, None
        for service in self.service.every:
            if service.live.generation is not None and name in service.composed.bus.columns:
                return service, service.composed, name
        if not any(service.live.generation for service in self.service.every):
            return self.service, self.service.composed, name  # raises 503: nothing is served
        return _unknown(name)

    async def _go_on(
        self,
        request: Request,
        wanted: CompletionRequest | ChatRequest,
        service: Service,
        model: redhost.ComposedModel,
        prompts: Sequence[str],
        *,
        expert: str | None,
        shape: Shape,
    ) -> Response:
        choices = wanted.n or 1
        if (texts := len(prompts) * choices) > (most := service.options.queue):
            # A retry would not help.
            raise HttpProblem(400, f"expected at most {most} choices in all, found {texts}")
        counts, longest = await token_counts(model, prompts), model.backbone.trunk.longest
        begun = list[Begun]()
        async with AsyncExitStack() as under_way:
            lengths = [*zip(prompts, counts, strict=True)]
            for (prompt, count), choice in product(lengths, range(choices)):
                grammar = await grammar_of(model, wanted.schema)
                tokens = await service.generate(
                    model,
                    prompt,
                    max_tokens=wanted.limit,
                    expert=expert,
                    grammar=grammar,
                    **wanted.sampled(choice),
                )
                await under_way.enter_async_context(aclosing(tokens))
                stop = UntilStop(wanted.stops)
                completion = Completion(
                    prompt_tokens=count,
                    counted=not choice,
                    limit=wanted.limit,
                    longest=longest,
                    stop=stop,
                    grammar=grammar,
                )
                begun.append((completion, tokens))
            if wanted.stream:
                options = wanted.stream_options
                counted = options is not None and bool(options.include_usage)
                return EventStream(_events(shape, begun, counted=counted), under_way.pop_all())
            async for _ in _turns(begun):
                if await request.is_disconnected():  # the client disconnected
                    break
        return reply(shape.whole([completion for completion, _ in begun]))


Begun = tuple[Completion, "AsyncGenerator[Token, None]"]
"""A choice, and the iterator of its tokens."""


async def _events(
    shape: Shape, begun: Sequence[Begun], *, counted: bool
) -> AsyncGenerator[bytes, None]:
    """Yield an event for each piece of each choice in turn, then the end, or an error."""
    try:
        async for turn in _turns(begun):
            for index, piece in turn:
                completion, _ = begun[index]
                yield shape.end(index, completion) if piece is None else shape.event(index, piece)
    except HttpProblem as e:
        yield event("error", failure_at("/v1/completions", e))
        return
    yield shape.last([completion for completion, _ in begun], counted=counted)


async def _turns(
    begun: Sequence[Begun],
) -> AsyncGenerator[list[tuple[int, Piece | None]], None]:
    """Yield the next piece of every choice that goes on, by its index; None after its last one.

    Pieces of a turn are waited for together, so that their tokens are read in one pass.
    """
    going = {n: completion.chunks(tokens) for n, (completion, tokens) in enumerate(begun)}
    while going:
        found = await asyncio.gather(
            *(_next(chunks) for chunks in going.values()), return_exceptions=True
        )
        turn = list[tuple[int, Piece | None]]()
        for index, piece in zip(going, found, strict=True):
            if isinstance(piece, BaseException):
                raise piece
            turn.append((index, piece))
        yield turn
        for index, piece in turn:
            if piece is None:
                del going[index]
                await begun[index][1].aclose()  # after a stop text, no pass waits for more


async def _next(chunks: AsyncIterator[Piece]) -> Piece | None:
    return await anext(chunks, None)


def _unknown(name: str) -> NoReturn:
    reason = f"no model {name[:64]!r} here; GET /v1/models lists them"
    raise HttpProblem(404, reason, code="model_not_found")


async def _body(request: Request, kind: type[S]) -> S:
    data = await request.body()
    refuse_unsupported(data, kind)
    return decode(data, kind)


def _texts(given: str | list[str]) -> list[str]:
    return [given] if isinstance(given, str) else given


def _vector(vector: Sequence[float], *, packed: bool) -> list[float] | str:
    """Return a vector as numbers, or as base64 of little-endian float32."""
    if not packed:
        return list(vector)
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def _generations(answer: redhost.Answer) -> dict[str, Any]:
    """Return the generation that answered and, for several questions, that of each."""
    named = {name: a.generation for name, a in answer.named.items()}
    return {"generation": answer.generation, **({"questions": named} if named else {})}


def _classified(answer: redhost.Answer, expert: str | None) -> dict[str, Any]:
    """Return the composition's answer, or a single expert's."""
    # A swap may have removed the expert since the request was read.
    own = answer if expert is None else (answer.by_expert or {}).get(expert) or _unknown(expert)
    found: dict[str, Any] = {"label": own.label, "declined": own.declined}
    found |= {"value": own.value} if own.probability is None else {"probability": own.probability}
    if expert is None and answer.scores is not None:
        found |= {"labels": answer.labels, "scores": answer.scores}
    if expert is None and answer.spans is not None:
        found["spans"] = answer.spans
    beside = {name: _classified(a, None) for name, a in answer.named.items()}
    return {**found, "weights": answer.weights, **({"questions": beside} if beside else {})}
