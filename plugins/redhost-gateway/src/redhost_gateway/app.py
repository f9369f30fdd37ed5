"""The application: the proxy, the models, health and metrics."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, MutableMapping, Sequence
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import urlsplit

import msgspec
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Send

from redhost_gateway.gateway import AUTO, Gateway
from redhost_gateway.problems import Problem, UnknownModelProblem
from redhost_gateway.proxy import Proxy

__all__ = ["create_app"]

OWNER = "redhost"

WITH_HOST = ("http://", "https://")


def create_app(gateway: Gateway, *, hosts: Sequence[str] = ("*",)) -> Starlette:
    """Return the application.

    Args:
        gateway: The state; it follows the home while the application runs.
        hosts: The names that clients may ask for; ``*`` for any.
    """
    proxy, own = Proxy(gateway), OwnRoutes(gateway)

    @contextlib.asynccontextmanager
    async def following(_: Starlette) -> AsyncIterator[None]:
        await gateway.start()
        try:
            yield
        finally:
            await gateway.stop()

    routes = [
        Route("/v1/models", own.models, methods=["GET"]),
        Route("/v1/models/{name:path}", own.model, methods=["GET"]),
        Route("/metrics", own.metrics, methods=["GET"]),
        Route("/health/live", own.live, methods=["GET"]),
        Route("/health/ready", own.ready, methods=["GET"]),
        Route("/v1/{path:path}", proxy),
        Route("/{path:path}", own.absent),
    ]
    return Starlette(
        routes=routes, middleware=[Middleware(KnownHosts, hosts=hosts)], lifespan=following
    )


class KnownHosts:
    """An ASGI middleware that refuses other names in `Host`, against DNS rebinding.

    Args:
        app: The application.
        hosts: The names that clients may ask for; a ``*`` stands for any characters.
    """

    def __init__(self, app: ASGIApp, *, hosts: Sequence[str]) -> None:
        self.app, self.hosts = app, tuple(host.lower() for host in hosts)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        host, path = Headers(scope=scope).get("host", ""), scope["path"]
        if path.startswith(WITH_HOST):  # as for a forward proxy: it counts, and not the header
            host, _, path = path.partition("://")[2].partition("/")
            raw = scope["raw_path"].partition(b"://")[2].partition(b"/")[2]
            scope = {**scope, "path": f"/{path}", "raw_path": b"/" + raw}
        app = self.app if self._knows(host) else _REFUSED
        return await app(scope, receive, send)

    def _knows(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:  # brackets of no address
            name = ""
        return any(fnmatchcase(name, host) for host in self.hosts)


class OwnRoutes:
    """What the gateway answers itself.

    Args:
        gateway: The state.
    """

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway

    async def models(self, _: Request) -> Response:
        """List ``auto``, the experts, and the upstreams' models, of those that are answered."""
        return _json({"object": "list", "data": list(self._models().values())})

    async def model(self, request: Request) -> Response:
        """Return what the list says of one model."""
        found = self._models().get(request.path_params["name"])
        return _UNKNOWN if found is None else _json(found)

    async def metrics(self, _: Request) -> Response:
        """Return Prometheus' metrics."""
        return Response(self.gateway.metrics.text(), media_type="text/plain; version=0.0.4")

    async def live(self, _: Request) -> Response:
        """Say that the process runs."""
        return _json({"live": True})

    async def ready(self, _: Request) -> Response:
        """Say whether a generation chooses and an upstream answers with one of its columns."""
        serving, absent = self.gateway.serving, self.gateway.absent()
        answers = serving is not None and len(absent) < len(serving.columns)
        ready = answers and not self.gateway.draining
        shown = {
            "ready": ready,
            "draining": self.gateway.draining,
            "generation": None if serving is None else serving.number,
            "trouble": self.gateway.trouble or None,
            "upstreams": {upstream.url: upstream.healthy for upstream in self.gateway.upstreams},
            "absent": absent,
        }
        return _json(shown, status=200 if ready else 503)

    def _models(self) -> dict[str, dict[str, Any]]:
        """Return the models that can be answered, by name."""
        serving, absent = self.gateway.serving, self.gateway.absent()
        columns = () if serving is None else serving.columns
        names = [name for name in columns if name not in absent]
        found: dict[str, dict[str, Any]] = {}
        for name in (AUTO, *names) if names else ():
            parent = None if name == AUTO else AUTO
            found[name] = {
                "id": name, "object": "model", "created": 0, "owned_by": OWNER, "parent": parent
            }  # fmt: skip
        for upstream in self.gateway.upstreams:
            for model in upstream.listed if upstream.healthy else ():
                found.setdefault(str(model.get("id")), model)
        return found

    async def absent(self, _: Request) -> Response:
        """Say that only the API's paths are passed on."""
        return _refusal(Problem(404, "only paths under /v1 are passed on", code="unknown_path"))


def _refusal(problem: Problem) -> Response:
    return Response(problem.body, status_code=problem.status, headers=problem.headers)


_REFUSED = _refusal(
    Problem(
        400,
        "the Host header is no name of this gateway; allow it with --allowed-host",
        code="unknown_host",
    )
)

_UNKNOWN = _refusal(UnknownModelProblem())


def _json(content: object, *, status: int = 200) -> Response:
    return Response(msgspec.json.encode(content), status_code=status, media_type="application/json")
