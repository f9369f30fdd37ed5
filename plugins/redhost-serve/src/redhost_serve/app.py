"""Build the FastAPI application: all routes of one service."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import version
from importlib.resources import files

import msgspec
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response

import redhost
from redhost_serve import openai_wire, wire
from redhost_serve.admin import admin_routes
from redhost_serve.feedback import feedback_routes
from redhost_serve.inference import inference_routes
from redhost_serve.limits import RequestLimits, refusal
from redhost_serve.listing import listing_routes
from redhost_serve.openai_routes import openai_routes
from redhost_serve.problems import HttpProblem
from redhost_serve.service import Service
from redhost_serve.traffic import traffic_routes

__all__ = ["create_app"]

log = logging.getLogger("redhost.serve")

PAGE = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/traffic": ("traffic.html", "text/html; charset=utf-8"),
    "/static/page.css": ("page.css", "text/css; charset=utf-8"),
    "/static/elements.js": ("elements.js", "text/javascript; charset=utf-8"),
    "/static/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/static/traffic.js": ("traffic.js", "text/javascript; charset=utf-8"),
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
PREFIX = re.compile(r"(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)+")
ORIGIN = re.compile(r"\*|https?://(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?")


def create_app(service: Service, *, token: str | None = None) -> FastAPI:
    """Return the application.

    Args:
        service: The service; the application closes it on shutdown.
        token: The secret that authorises changes; None: no changes over HTTP.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    app = FastAPI(
        title="redhost",
        version=version("redhost-serve"),
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # a redirect would echo the client's Host
        lifespan=lifespan,
    )
    _add_routes(app, service, token=token)
    for kind, handler in HANDLERS.items():
        app.add_exception_handler(kind, handler)
    options = service.options
    app.add_middleware(
        RequestLimits,
        limit=options.body,
        seconds=options.seconds,
        metrics=service.metrics,
        hosts=options.hosts,
        root_path=_checked_prefix(options.root_path, app),
    )
    if options.origins:  # outside of the limits, so that a page can read a refusal as well
        app.add_middleware(
            CORSMiddleware,
            allow_origins=_checked_origins(options.origins),
            allow_methods=["GET", "HEAD", "POST"],
            allow_headers=["*"],
            expose_headers=["Retry-After"],
        )
    _describe(app)
    return app


def _checked_prefix(prefix: str, app: FastAPI) -> str:
    """Return a prefix of paths, checked: it must not be the beginning of a route.

    Raises:
        UsageError: If it is, or is not of the form ``/a/b``.
    """
    prefix = prefix.rstrip("/")
    first = {"/" + path.split("/")[1] for path in (*app.openapi()["paths"], *PAGE)}
    if prefix and (not PREFIX.fullmatch(prefix) or "/" + prefix.split("/")[1] in first):
        raise redhost.UsageError(
            f"the prefix {prefix!r} of paths",
            expected="/NAME, where no route begins with NAME",
            found=prefix,
        )
    return prefix


def _checked_origins(origins: Sequence[str]) -> list[str]:
    """Return origins of web pages, checked.

    Raises:
        UsageError: If one is not of the form ``https://NAME:PORT``.
    """
    for origin in origins:
        if not ORIGIN.fullmatch(origin):
            raise redhost.UsageError(
                "an origin of web pages",
                expected="https://NAME, https://NAME:PORT or *",
                found=repr(origin),
            )
    return list(origins)


def _add_routes(app: FastAPI, service: Service, *, token: str | None) -> None:
    app.include_router(inference_routes(service))
    app.include_router(listing_routes(service, admin=token is not None))
    app.include_router(traffic_routes(service.last_minute, lambda: service.draining))
    app.include_router(openai_routes(service, admin=token is not None))
    if token is not None:
        app.include_router(admin_routes(service, token=token))
        app.include_router(feedback_routes(service, token=token))
    for path, (name, media) in PAGE.items():
        _add_page(app, path, name, media)


def _add_page(app: FastAPI, path: str, name: str, media: str) -> None:
    data = files("redhost_serve").joinpath("static", name).read_bytes()
    headers = {"Content-Security-Policy": POLICY, "Referrer-Policy": "no-referrer"}

    async def page() -> Response:
        return Response(data, media_type=media, headers=headers)

    app.add_api_route(path, page, include_in_schema=False)


async def _problem(request: Request, error: Exception) -> Response:
    problem = error if isinstance(error, HttpProblem) else HttpProblem(500, str(error))
    return _failure(request, problem)


async def _http(request: Request, error: Exception) -> Response:
    """Answer Starlette's own errors: no such route, no such method."""
    status, headers = (
        (error.status_code, error.headers) if isinstance(error, HTTPException) else (500, None)
    )
    reason = "no such route" if status == 404 else "not this method"  # noqa: PLR2004
    return _failure(request, HttpProblem(status, reason, headers=headers))


async def _invalid(request: Request, __: Exception) -> Response:
    """Refuse an invalid request; FastAPI's handler echoes it, and fails if it cannot encode it."""
    return _failure(request, HttpProblem(400, "the request is not what this route reads"))


def _failure(request: Request, problem: HttpProblem) -> Response:
    headers, body = refusal(request.scope, problem)
    return Response(body, problem.status, headers=headers)


HANDLERS = {HttpProblem: _problem, HTTPException: _http, RequestValidationError: _invalid}


def _describe(app: FastAPI) -> None:
    """Declare request and response schemas in the OpenAPI; drop responses that never occur."""
    kinds = [getattr(of, name) for of in (wire, openai_wire) for name in of.__all__]
    structs = [k for k in kinds if isinstance(k, type) and issubclass(k, msgspec.Struct)]
    _, schemas = msgspec.json.schema_components(structs, ref_template="#/components/schemas/{name}")
    schema = app.openapi()
    for path in schema["paths"].values():
        for operation in path.values():
            if "Validation" in operation["responses"].get("422", {}).get("description", ""):
                del operation["responses"]["422"]  # FastAPI's own, which is never returned
    schema["components"] = {
        "schemas": schemas,
        "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
    }
