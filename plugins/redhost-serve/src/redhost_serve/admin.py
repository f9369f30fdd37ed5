"""The routes that change the served generation: only from this machine, only with a token."""

from __future__ import annotations

import hmac
import ipaddress
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

import redhost
from redhost_serve.problems import HttpProblem
from redhost_serve.reply import (
    body,
    reply,
    request_body_for,
    responses_for,
    run_in_thread,
)
from redhost_serve.service import Service
from redhost_serve.wire import Attach, Change, Detach, LoadRequest, Replace, Served

__all__ = ["admin_routes", "check", "read_token", "require_token"]

S = TypeVar("S", bound=msgspec.Struct)

SHORTEST = 16
STATUSES = (400, 401, 403, 404, 409, 412, 422)


def read_token(path: Path) -> str:
    """Return the token of a file that only its owner can read.

    Raises:
        SettingsError: If it cannot be read, other users can read it, or it is too short.
    """
    try:
        token, mode = path.read_text("utf-8").strip(), path.stat().st_mode
    except (OSError, UnicodeDecodeError) as e:
        raise redhost.errors.SettingsError(
            f"cannot read the token in {path}",
            found=(getattr(e, "strerror", None) or str(e)).lower(),
            hint=f"Make one: 'openssl rand -hex 32 > {path} && chmod 600 {path}'.",
        ) from e
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise redhost.errors.SettingsError(
            f"others can read the token in {path}",
            expected="a file for its owner alone",
            found=oct(stat.S_IMODE(mode)),
            hint=f"Run 'chmod 600 {path}'.",
        )
    if len(token) < SHORTEST:
        raise redhost.errors.SettingsError(
            f"the token in {path} is too short",
            expected=f"at least {SHORTEST} characters",
            found=str(len(token)),
            hint="Make one with 'openssl rand -hex 32'.",
        )
    return token


def check(request: Request, token: str) -> None:
    """Accept only a request that comes from this machine and has the token.

    Raises:
        HttpProblem: 403 for another machine, 401 without the token.
    """
    if not _is_local(request):
        raise HttpProblem(403, "changes are made from this machine only")
    require_token(request, token)


def require_token(request: Request, token: str) -> None:
    """Accept only a request that has the token.

    Raises:
        HttpProblem: 401 without it.
    """
    given = request.headers.get("authorization", "").encode("utf-8", "replace")
    if not hmac.compare_digest(given, f"Bearer {token}".encode()):
        raise HttpProblem(
            401, "the token is missing or wrong", headers={"WWW-Authenticate": "Bearer"}
        )


def admin_routes(service: Service, *, token: str) -> APIRouter:
    """Return the routes.

    Args:
        service: The service that they change.
        token: The secret that a caller must send.
    """
    changes, routes = AdminRoutes(service, token=token), APIRouter(tags=["admin"])
    for path, change, kind, required in (
        ("/admin/swap", changes.swap, Change, False),
        ("/admin/rollback", changes.rollback, Change, False),
        ("/admin/attach", changes.attach, Attach, True),
        ("/admin/detach", changes.detach, Detach, True),
        ("/admin/replace", changes.replace, Replace, True),
        ("/v2/repository/models/{name}/load", changes.load, LoadRequest, False),
        ("/v2/repository/models/{name}/unload", changes.unload, LoadRequest, False),
    ):
        routes.add_api_route(
            path,
            change,
            methods=["POST"],
            responses=responses_for(Served, *STATUSES),
            openapi_extra={
                **request_body_for(kind, required=required),
                "security": [{"token": []}],
            },
        )
    return routes


class AdminRoutes:
    """The handlers of the routes; after an error the old generation is still served.

    Args:
        service: The service that is changed.
        token: The secret that a caller must send.
    """

    def __init__(self, service: Service, *, token: str) -> None:
        self.service, self.token = service, token

    async def swap(self, request: Request) -> Response:
        """Verify, load, warm up and serve a generation."""
        change = await self._authorised(request, Change)
        return await _change(self.service.of_question(change.question), _swap(change))

    async def rollback(self, request: Request) -> Response:
        """Serve the parent of the served generation; nothing is trained."""
        change = await self._authorised(request, Change)
        service, expected = self.service.of_question(change.question), change.expected_generation
        return await _change(service, lambda live: live.rollback(expected=expected))

    async def attach(self, request: Request) -> Response:
        """Compose with one more installed expert, and serve the result."""
        options = await self._authorised(request, Attach)
        service, expected = self.service.of_question(options.question), options.expected_generation
        joins = redhost.plugins.Installed(options.source)
        return await _change(service, lambda live: live.attach(joins, expected=expected))

    async def detach(self, request: Request) -> Response:
        """Compose without an expert, and serve the result."""
        options = await self._authorised(request, Detach)
        service, expected = self.service.of_question(options.question), options.expected_generation
        return await _change(service, lambda live: live.detach(options.id, expected=expected))

    async def replace(self, request: Request) -> Response:
        """Replace an expert by an installed one, and serve the result."""
        options = await self._authorised(request, Replace)
        service, expected = self.service.of_question(options.question), options.expected_generation
        leaves, joins = options.id, redhost.plugins.Installed(options.source)
        return await _change(service, lambda live: live.replace(leaves, joins, expected=expected))

    async def load(self, name: str, request: Request) -> Response:
        """Serve a generation, by default the current one; also starts serving a new question."""
        change = (await self._authorised(request, LoadRequest)).parameters
        await run_in_thread(self.service.find_questions)
        return await _change(self.service.of_model(name), _swap(change))

    async def unload(self, name: str, request: Request) -> Response:
        """Serve nothing until the next load; requests get 503 meanwhile."""
        change = (await self._authorised(request, LoadRequest)).parameters
        service, expected = self.service.of_model(name), change.expected_generation
        return await _change(service, lambda live: live.unload(expected=expected))

    async def _authorised(self, request: Request, kind: type[S]) -> S:
        """Return the decoded body of an authorised request."""
        check(request, self.token)
        return await body(request, kind)


async def _change(service: Service, how: Callable[[redhost.Live], object]) -> Response:
    now, before = await run_in_thread(
        lambda: service.change(lambda: how(service.live)), otherwise=422
    )
    return reply(Served(generation=now, previous=before))


def _swap(change: Change) -> Callable[[redhost.Live], int]:
    return lambda live: live.swap(change.generation, expected=change.expected_generation)


def _is_local(request: Request) -> bool:
    """Return whether a request comes from this machine: by loopback, or by a Unix socket."""
    if request.client is None:  # a Unix socket has no addresses
        return (request.scope.get("server") or ("", 0))[1] is None
    return _is_loopback(request.client.host)


def _is_loopback(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)
