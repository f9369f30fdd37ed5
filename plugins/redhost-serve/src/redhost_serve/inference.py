"""The routes of the Open Inference Protocol v2: health, metadata, infer; route and generate."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing
from importlib.metadata import version
from typing import TYPE_CHECKING

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from redhost_serve.completion import (
    Completion,
    UntilStop,
    grammar_of,
    require_generating,
    token_counts,
)
from redhost_serve.problems import HttpProblem
from redhost_serve.reply import (
    EVENTS,
    EventStream,
    body,
    event,
    reply,
    request_body_for,
    responses_for,
    run_in_thread,
)
from redhost_serve.service import Service
from redhost_serve.wire import (
    MODEL,
    Failure,
    GenerateReply,
    GenerateRequest,
    InferReply,
    InferRequest,
    Metadata,
    ModelMetadata,
    Ready,
    RouteReply,
    RouteRequest,
    TensorMetadata,
    generate_reply,
    infer_reply,
    route_reply,
    stops_of,
    texts_of,
)

if TYPE_CHECKING:
    from redhost_generate import Token

__all__ = ["inference_routes"]

EXTENSIONS = ["model_repository", "metrics"]


def inference_routes(service: Service) -> APIRouter:
    """Return the routes."""
    answers, routes = InferenceRoutes(service), APIRouter(tags=["inference"])
    for path, answer, responses in (
        ("/v2/health/live", answers.live, responses_for(dict, 503)),
        ("/v2/health/ready", answers.ready, _ready()),
        ("/v2", answers.server, responses_for(Metadata)),
        ("/v2/models/{name}", answers.model, responses_for(ModelMetadata, 404, 503)),
        ("/v2/models/{name}/ready", answers.model_ready, _ready(404)),
    ):
        routes.add_api_route(path, answer, responses=responses)
    routes.add_api_route(
        "/v2/models/{name}/infer",
        answers.infer,
        methods=["POST"],
        responses=responses_for(InferReply, 400, 404, 503),
        openapi_extra=request_body_for(InferRequest),
    )
    routes.add_api_route(
        "/v1/route",
        answers.route,
        methods=["POST"],
        responses=responses_for(RouteReply, 400, 404, 503),
        openapi_extra=request_body_for(RouteRequest),
    )
    generated = responses_for(GenerateReply, 400, 404, 503)
    generated[200]["content"][EVENTS] = {"schema": {"type": "string"}}
    routes.add_api_route(
        "/v1/generate",
        answers.generate,
        methods=["POST"],
        responses=generated,
        openapi_extra=request_body_for(GenerateRequest),
    )
    return routes


class InferenceRoutes:
    """The handlers of the routes.

    Args:
        service: The service that answers.
    """

    def __init__(self, service: Service) -> None:
        self.service = service

    async def live(self) -> Response:
        """Report whether the process and all its threads run; if not, it must be restarted."""
        working = self._working
        return reply({"live": working}, status=200 if working else 503)

    async def ready(self) -> Response:
        """Report whether new requests are accepted: a question is answered, all threads run."""
        return _is_ready(self._working and any(service.ready for service in self.service.every))

    @property
    def _working(self) -> bool:
        return all(service.working for service in self.service.every)

    async def server(self) -> Response:
        """Return the server's metadata."""
        metadata = Metadata(name=MODEL, version=version("redhost-serve"), extensions=EXTENSIONS)
        return reply(metadata)

    async def model(self, name: str) -> Response:
        """Return the model's inputs and outputs."""
        service = self.service.of_model(name)
        return reply(await run_in_thread(lambda: _metadata(service)))

    async def model_ready(self, name: str) -> Response:
        """Report whether a generation is served."""
        return _is_ready(self.service.of_model(name).ready)

    async def infer(self, name: str, request: Request) -> Response:
        """Answer texts; one generation answers all of a request, and the answer names it."""
        service = self.service.of_model(name)
        wanted = await body(request, InferRequest)
        answers = await service.ask(texts_of(wanted), headers=request.headers)
        return reply(infer_reply(wanted, answers, model=name))

    async def route(self, request: Request) -> Response:
        """Return the expert to which each text is routed; no expert is run."""
        wanted = await body(request, RouteRequest)
        service = self.service.of_question(wanted.question)
        return reply(route_reply(await service.route(wanted.texts)))

    async def generate(self, request: Request) -> Response:
        """Continue a prompt; one generation makes all tokens."""
        wanted = await body(request, GenerateRequest)
        service = self.service.of_question(wanted.question)
        model = service.composed
        require_generating(model, service.model)
        grammar = await grammar_of(model, wanted.json_schema)
        tokens = await service.generate(
            model,
            wanted.prompt,
            max_tokens=wanted.max_tokens,
            expert=wanted.expert,
            grammar=grammar,
            **wanted.sampled(),
        )
        async with AsyncExitStack() as under_way:
            await under_way.enter_async_context(aclosing(tokens))
            [count] = await token_counts(model, [wanted.prompt])
            completion = Completion(
                prompt_tokens=count,
                limit=wanted.max_tokens,
                longest=model.backbone.trunk.longest,
                stop=UntilStop(stops_of(wanted.stop)),
                grammar=grammar,
            )
            if wanted.stream:
                events = _events(model.generation, completion, tokens)
                return EventStream(events, under_way.pop_all())
            shown: list[Token] = []
            async for token in completion.shown(tokens):
                shown.append(token)
                if await request.is_disconnected():  # the client disconnected
                    break
        return reply(_whole(model.generation, completion, shown))


async def _events(
    generation: int | None, completion: Completion, tokens: AsyncIterator[Token]
) -> AsyncGenerator[bytes, None]:
    """Yield an event for each token, then the reply without its tokens, or an error."""
    try:
        async for token in completion.shown(tokens):
            yield event("token", token)
    except HttpProblem as e:
        yield event("error", Failure(error=e.reason))
        return
    whole = _whole(generation, completion, ())
    whole.text = completion.text
    yield event("end", whole)


def _whole(
    generation: int | None, completion: Completion, tokens: Sequence[Token]
) -> GenerateReply:
    return generate_reply(
        generation, tokens, weights=completion.weights, finish=completion.finish_reason
    )


def _is_ready(ready: bool) -> Response:
    return reply(Ready(ready=ready), status=200 if ready else 503)


def _ready(*statuses: int) -> dict[int | str, dict[str, object]]:
    responses = responses_for(Ready, *statuses)
    return {**responses, 503: {**responses[200], "description": "Not ready."}}


def _metadata(service: Service) -> ModelMetadata:
    bus = service.live.composed.bus
    answers = "probability" if bus.task.head.probabilities else "value"
    outputs = [
        TensorMetadata(name="label", datatype="BYTES", shape=[-1]),
        TensorMetadata(name="declined", datatype="BOOL", shape=[-1]),
        TensorMetadata(name=answers, datatype="FP64", shape=[-1]),
        TensorMetadata(name="weights", datatype="FP64", shape=[-1, len(bus.columns)]),
    ]
    if "scores" in bus.task.head.fields:
        shape = [-1, len(bus.labels)]
        outputs.append(TensorMetadata(name="scores", datatype="FP64", shape=shape))
    return ModelMetadata(
        name=service.model,
        versions=[str(service.live.generation)],
        platform="redhost",
        inputs=[TensorMetadata(name="text", datatype="BYTES", shape=[-1])],
        outputs=[] if bus.task.unit.generates else outputs,  # `infer` returns no tokens
    )
