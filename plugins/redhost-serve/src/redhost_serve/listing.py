"""The read-only routes: models, generations, the repository's index, metrics."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from redhost_serve.openai_wire import AUTO, BACKBONE, OpenAiFailure
from redhost_serve.reply import reply, responses_for, run_in_thread
from redhost_serve.service import Service
from redhost_serve.wire import Failure

__all__ = ["listing_routes", "models"]


def listing_routes(service: Service, *, admin: bool) -> APIRouter:
    """Return the routes.

    Args:
        service: The service that they show.
        admin: Whether changes can be made over HTTP.
    """
    shows, routes = ListingRoutes(service, admin=admin), APIRouter(tags=["listing"])
    for path, show, kind in (
        ("/v1/models", shows.models, dict),
        ("/v1/generations", shows.generations, dict),
        ("/metrics", shows.metrics, str),
    ):
        failure = OpenAiFailure if path == "/v1/models" else Failure
        responses = responses_for(kind, 404, 503, failure=failure)
        routes.add_api_route(path, show, responses=responses)
    index = responses_for(list, 503)
    routes.add_api_route("/v2/repository/index", shows.index, methods=["POST"], responses=index)
    return routes


class ListingRoutes:
    """The handlers of the routes.

    Args:
        service: The service that they show.
        admin: Whether changes can be made over HTTP.
    """

    def __init__(self, service: Service, *, admin: bool) -> None:
        self.service, self.admin = service, admin

    async def models(self) -> Response:
        """Show each question's composition, its experts' states, and each expert composed."""
        found = await run_in_thread(lambda: models(self.service, admin=self.admin))
        return reply({"object": "list", "data": found})

    async def generations(self, model: str | None = None) -> Response:
        """Show a model's last generations: parents, experts, accuracy from their receipts."""
        service = self.service if model is None else self.service.of_model(model)
        return reply({"data": await run_in_thread(service.generations)})

    async def index(self) -> Response:
        """List the generations as versions of their models."""
        return reply(await run_in_thread(lambda: _index(self.service)))

    async def metrics(self) -> Response:
        """Show all metrics, for Prometheus."""
        headers = {"Content-Type": CONTENT_TYPE_LATEST}
        own, *beside = (service.metrics for service in self.service.every)
        return Response(own.text(beside), headers=headers)


def models(service: Service, *, admin: bool) -> list[dict[str, Any]]:
    """Return each question's composition as a model, followed by its experts as its children.

    The other names that requests may give come last: `AUTO`, and, of a backbone that generates
    text, `BACKBONE`.
    """
    found = [x for one in service.every for x in _models(one, admin=admin)]
    about = {key: found[0][key] for key in ("object", "created", "owned_by", "root")}
    others = [AUTO]
    if service.live.generation is not None and service.composed.backbone.task.unit.generates:
        others.append(BACKBONE)
    return [*found, *({"id": name, **about, "parent": service.model} for name in others)]


def _models(service: Service, *, admin: bool) -> list[dict[str, Any]]:
    live = service.live
    number = live.generation
    record = None if number is None else live.host.generations.load(number)
    ids = [m.id for m in record.experts] if record else []
    created = int(datetime.fromisoformat(record.created).timestamp()) if record else 0
    about = {"object": "model", "created": created, "owned_by": "redhost", "root": service.model}
    whole = {
        "id": service.model,
        **about,
        "question": service.question,
        "ready": service.ready,
        "generation": number,
        "parent": record.parent if record else None,
        "backbone": record.backbone.id if record else None,
        "router": record.router.kind if record else None,
        "candidate": service.candidate,
        "recalled": service.recalled,
        "follows": None if service.follows is None else service.follows(),
        "admin": admin,
        "experts": [{**x, "serving": x["id"] in ids} for x in service.experts()],
    }
    return [whole, *({"id": i, **about, "parent": service.model} for i in ids)]


def _index(service: Service) -> list[dict[str, str]]:
    return [
        {
            "name": one.model,
            "version": str(number),
            "state": "READY" if number == one.live.generation else "UNAVAILABLE",
            "reason": "" if number == one.live.generation else "not the generation that is served",
        }
        for one in service.every
        for number in one.live.host.generations.numbers()
    ]
