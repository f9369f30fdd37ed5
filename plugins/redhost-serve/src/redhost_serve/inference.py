"""The routes of the Open Inference Protocol v2: health, metadata, infer."""

from __future__ import annotations

from importlib.metadata import version

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from redhost_serve.reply import body, known, off_loop, reads, reply, says
from redhost_serve.service import Service
from redhost_serve.wire import (
    MODEL,
    InferReply,
    InferRequest,
    Metadata,
    ModelMetadata,
    Ready,
    TensorMetadata,
    infer_reply,
    texts_of,
)

__all__ = ["inference_routes"]

EXTENSIONS = ["model_repository", "metrics"]


def inference_routes(service: Service) -> APIRouter:
    """Return the routes."""
    routes = APIRouter(tags=["inference"])

    @routes.get("/v2/health/live", responses=says(dict))
    async def live() -> Response:
        """Say that the process runs; it does so until it ends."""
        return reply({"live": True})

    @routes.get("/v2/health/ready", responses=_ready())
    async def ready() -> Response:
        """Say whether new requests should come here."""
        return reply(Ready(ready=service.ready), status=200 if service.ready else 503)

    @routes.get("/v2", responses=says(Metadata))
    async def server() -> Response:
        """Say what this server is."""
        told = Metadata(name=MODEL, version=version("redhost-serve"), extensions=EXTENSIONS)
        return reply(told)

    @routes.get("/v2/models/{name}", responses=says(ModelMetadata, 404, 503))
    async def model(name: str) -> Response:
        """Say what the model reads and answers."""
        known(name)
        return reply(await off_loop(lambda: _metadata(service)))

    @routes.get("/v2/models/{name}/ready", responses=_ready(404))
    async def model_ready(name: str) -> Response:
        """Say whether a generation is served."""
        known(name)
        return reply(Ready(ready=service.ready), status=200 if service.ready else 503)

    @routes.post(
        "/v2/models/{name}/infer",
        responses=says(InferReply, 400, 404, 503),
        openapi_extra=reads(InferRequest),
    )
    async def infer(name: str, request: Request) -> Response:
        """Answer texts; one generation answers all of a request, and the answer names it."""
        known(name)
        wanted = await body(request, InferRequest)
        return reply(infer_reply(wanted, await service.ask(texts_of(wanted))))

    return routes


def _ready(*statuses: int) -> dict[int | str, dict[str, object]]:
    told = says(Ready, *statuses)
    return {**told, 503: {**told[200], "description": "Not ready."}}


def _metadata(service: Service) -> ModelMetadata:
    bus = service.live.composed.bus
    answers = "probability" if bus.task.name == "classification" else "value"
    return ModelMetadata(
        name=MODEL,
        versions=[str(service.live.generation)],
        platform="redhost",
        inputs=[TensorMetadata(name="text", datatype="BYTES", shape=[-1])],
        outputs=[
            TensorMetadata(name="label", datatype="BYTES", shape=[-1]),
            TensorMetadata(name=answers, datatype="FP64", shape=[-1]),
            TensorMetadata(name="weights", datatype="FP64", shape=[-1, len(bus.columns)]),
        ],
    )
