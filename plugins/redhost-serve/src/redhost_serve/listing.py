"""The routes that show: models, generations, the repository's index, metrics."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from redhost_serve.reply import reply, responses_for, run_in_thread
from redhost_serve.service import Service
from redhost_serve.wire import MODEL

__all__ = ["listing_routes", "models"]


def listing_routes(service: Service, *, admin: bool) -> APIRouter:
    """Return the routes.

    Args:
        service: What they show.
        admin: Whether changes can be made over HTTP.
    """
    shows, routes = ListingRoutes(service, admin=admin), APIRouter(tags=["listing"])
    for path, show, kind in (
        ("/v1/models", shows.models, dict),
        ("/v1/generations", shows.generations, dict),
        ("/metrics", shows.metrics, str),
    ):
        routes.add_api_route(path, show, responses=responses_for(kind, 503))
    index = responses_for(list, 503)
    routes.add_api_route("/v2/repository/index", shows.index, methods=["POST"], responses=index)
    return routes


class ListingRoutes:
    """What the routes show.

    Args:
        service: Of what.
        admin: Whether changes can be made over HTTP.
    """

    def __init__(self, service: Service, *, admin: bool) -> None:
        self.service, self.admin = service, admin

    async def models(self) -> Response:
        """Show the composition, its experts' states, the last candidate; and each expert."""
        found = await run_in_thread(lambda: models(self.service, admin=self.admin))
        return reply({"object": "list", "data": found})

    async def generations(self) -> Response:
        """Show the last generations: parents, experts, accuracy by domain from their receipts."""
        return reply({"data": await run_in_thread(self.service.generations)})

    async def index(self) -> Response:
        """List the generations as versions of the model."""
        return reply(await run_in_thread(lambda: _index(self.service)))

    async def metrics(self) -> Response:
        """Show everything counted, for Prometheus."""
        headers = {"Content-Type": CONTENT_TYPE_LATEST}
        return Response(self.service.metrics.text(), headers=headers)


def models(service: Service, *, admin: bool) -> list[dict[str, Any]]:
    """Return the composition as a model, and each of its experts as one whose parent it is."""
    live = service.live
    number = live.generation
    record = None if number is None else live.host.generations.load(number)
    ids = [m.id for m in record.experts] if record else []
    created = int(datetime.fromisoformat(record.created).timestamp()) if record else 0
    about = {"object": "model", "created": created, "owned_by": "redhost", "root": MODEL}
    whole = {
        "id": MODEL,
        **about,
        "ready": service.ready,
        "generation": number,
        "parent": record.parent if record else None,
        "backbone": record.backbone.id if record else None,
        "router": record.router.kind if record else None,
        "candidate": service.candidate,
        "follows": None if service.follows is None else service.follows(),
        "admin": admin,
        "experts": [{**x, "serving": x["id"] in ids} for x in service.experts()],
    }
    return [whole, *({"id": i, **about, "parent": MODEL} for i in ids)]


def _index(service: Service) -> list[dict[str, str]]:
    serving = service.live.generation
    return [
        {
            "name": MODEL,
            "version": str(number),
            "state": "READY" if number == serving else "UNAVAILABLE",
            "reason": "" if number == serving else "not the generation that is served",
        }
        for number in service.live.host.generations.numbers()
    ]
