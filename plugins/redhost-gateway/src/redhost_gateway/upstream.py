"""A server behind the gateway: its connections, whether it answers, and the models it lists."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from base64 import b64encode
from collections.abc import Mapping, Sequence
from email.utils import parsedate_to_datetime
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import unquote, urlsplit

import httpx2
import msgspec

import redhost
from redhost_gateway.choosing import BACKBONE
from redhost_gateway.settings import Limits, UpstreamSettings

__all__ = ["LACKS", "Answer", "Headers", "ListedAdapter", "Upstream", "pick"]

log = logging.getLogger("redhost.gateway")

Headers = Sequence[tuple[bytes, bytes]]

PER_CLIENT = 64
"""Requests that share a pool of connections: a search in it takes time for each of its members."""

TOO_MANY = 8 * 2**20
"""Most bytes of an answer to the gateway's own requests."""

LONGEST_PAUSE = 3600.0
"""Seconds: an upstream that asks for more, by a broken clock or a mistake, is asked again then."""

CHECKING = 30.0
"""Seconds for the answer to a check; what says nothing would else hold up those of others."""

VISIBLE = re.compile(r"[!-~]+")
AUTHORIZATION = b"authorization"
ERROR = 500

LISTS, MAY, LACKS = range(3)
"""How far an upstream has a model."""


class ListedAdapter(msgspec.Struct, kw_only=True):
    """What llama.cpp's server says of an adapter.

    Attributes:
        id: Its number there.
        path: Its file.
        task_name: What the file itself says that it is; `redhost export` writes its name.
    """

    id: int
    path: str = ""
    task_name: str = ""

    @property
    def name(self) -> str:
        """What it says that it is, or else its file's name without the ending."""
        return self.task_name or PurePath(self.path).stem


class _Listing(msgspec.Struct):
    data: list[dict[str, Any]]


class Upstream:
    """A server with OpenAI's API.

    Args:
        settings: Its address, and the names that experts have there.
        limits: Time-outs.

    Attributes:
        url: Its address without a user and a password.
        listed: The models that it lists.
        adapters: Those that llama.cpp was started with; None if it does not say.
    """

    def __init__(self, settings: UpstreamSettings, *, limits: Limits) -> None:
        self.settings, self.url = settings, settings.shown
        self._address = httpx2.URL(settings.shown)
        self._basic = _basic(settings.address)
        self.timeout = httpx2.Timeout(limits.read, connect=limits.connect, pool=limits.connect)
        self.healthy = self.reachable = True
        self.in_flight, self.paused = 0, 0.0
        self.listed: tuple[dict[str, Any], ...] = ()
        self.adapters: tuple[ListedAdapter, ...] | None = None
        self._names: tuple[object, frozenset[str]] = ((), frozenset())
        key = settings.key_file
        token = None if key is None else _read_key(Path(key).expanduser())
        self.own_headers = {} if token is None else {"authorization": f"Bearer {token}"}
        self._clients: list[tuple[httpx2.AsyncClient, list[int]]] = []

    @property
    def place(self) -> str:
        """Its host and port."""
        return urlsplit(self.url).netloc

    def __repr__(self) -> str:
        return f"Upstream({self.url!r})"

    @property
    def names(self) -> frozenset[str]:
        """The names of the models that it lists, with llama.cpp's aliases of them."""
        if self._names[0] is not self.listed:
            self._names = self.listed, frozenset(n for m in self.listed for n in _names_of(m))
        return self._names[1]

    def name_of(self, column: str) -> str | None:
        """Return its name of an expert or of the backbone; None if that is not known.

        The backbone is the first model without a parent, unless a name is configured.
        """
        if column in self.settings.models or column != BACKBONE:
            return self.settings.models.get(column, column)
        bases = (model for model in self.listed if not model.get("parent"))
        return next((str(model["id"]) for model in bases), None)

    def may_have(self, name: str | None, *, chosen: bool) -> bool:
        """Return whether it answers, and has a model or may have it.

        Args:
            name: The model's name; None if the request names none.
            chosen: Whether it is an expert of a generation, which may be loaded there.
        """
        return self.healthy and self.fit(name, chosen=chosen) < LACKS

    def fit(self, name: str | None, *, chosen: bool) -> int:
        """Return whether it lists a model, may have it, or lacks it; see `may_have`."""
        if name is None or (self.name_of(name) or name) in self.names:
            return LISTS
        configured = name in self.settings.models
        loads = chosen and self.settings.loads != "none"
        return MAY if configured or loads or not self.listed else LACKS

    def pause(self, headers: Headers) -> None:
        """Prefer others for as long as an answer's `Retry-After` says, at most `LONGEST_PAUSE`."""
        named = (v for k, v in headers if k.lower() == b"retry-after")
        self.paused = time.monotonic() + min(_seconds(next(named, b"0")), LONGEST_PAUSE)

    async def send(self, method: str, path: bytes, headers: Headers, body: bytes) -> Answer:
        """Send a request; return as soon as the head of its answer is there.

        Raises:
            TransportError: If there is none.
        """
        client, load = self._client()
        address = self._address
        url = address.copy_with(raw_path=address.raw_path.rstrip(b"/") + path)
        if self._basic is not None:
            headers = [(k, v) for k, v in headers if k != AUTHORIZATION]
            headers.append((AUTHORIZATION, self._basic))
        request = httpx2.Request(
            method,
            url,
            headers=list(headers),
            content=body,
            extensions={"timeout": self.timeout.as_dict()},
        )
        load[0] += 1
        self.in_flight += 1
        try:
            return Answer(await client.send(request, stream=True), self, load)
        except BaseException:
            load[0] -= 1
            self.in_flight -= 1
            raise

    async def ask(
        self, method: str, path: str, content: Mapping[str, Any] | None = None
    ) -> tuple[int, bytes]:
        """Make a request of the gateway's own; return the status and the body of its answer.

        Raises:
            TransportError: If there is none.
        """
        headers = [(k.encode(), v.encode()) for k, v in self.own_headers.items()]
        body = b"" if content is None else msgspec.json.encode(content)
        if body:
            headers.append((b"content-type", b"application/json"))
        answer = await self.send(method, path.encode(), headers, body)
        try:
            data = bytearray()
            async for part in answer.decoded():
                data += part
                if len(data) > TOO_MANY:
                    break
        finally:
            await answer.close()
        return answer.status, bytes(data)

    async def check(self) -> None:
        """Find out whether it answers, and which models it lists."""
        try:
            async with asyncio.timeout(CHECKING):
                status, body = await self.ask("GET", "/v1/models")
                # llama.cpp reads adapters when it starts, and lists them between a model's passes.
                unknown = self.adapters is None or not self.healthy
                if self.settings.loads == "llama.cpp" and unknown:
                    await self.list_adapters()
        except (httpx2.TransportError, TimeoutError) as e:
            self.down(e)
            return
        if not self.healthy and status < ERROR:
            log.info("%s answers again", self.url)
        self.reachable, self.healthy = True, status < ERROR
        try:
            self.listed = tuple(msgspec.json.decode(body, type=_Listing).data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            self.listed = ()  # a server that lists nothing answers names all the same

    async def list_adapters(self) -> tuple[ListedAdapter, ...] | None:
        """Return what llama.cpp says of the adapters that it was started with.

        Raises:
            TransportError: If it does not answer.
        """
        _, body = await self.ask("GET", "/lora-adapters")
        try:
            self.adapters = msgspec.json.decode(body, type=tuple[ListedAdapter, ...])
        except (msgspec.DecodeError, UnicodeDecodeError):  # it has no such list
            self.adapters = None
        return self.adapters

    def down(self, error: Exception) -> None:
        """Note that it does not answer."""
        if self.healthy:
            log.warning("%s does not answer: %s", self.url, type(error).__name__)
        self.healthy = False
        self.reachable = not isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout)

    async def close(self) -> None:
        """Close its connections."""
        for client, _ in self._clients:
            await client.aclose()

    def _client(self) -> tuple[httpx2.AsyncClient, list[int]]:
        for client, load in self._clients:
            if load[0] < PER_CLIENT:
                return client, load
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=PER_CLIENT)
        made = httpx2.AsyncClient(limits=limits, trust_env=False), [0]
        self._clients.append(made)
        return made


class Answer:
    """The answer of an upstream, whose body is still to come; close it."""

    def __init__(self, response: httpx2.Response, upstream: Upstream, load: list[int]) -> None:
        self._response, self._upstream, self._load = response, upstream, load
        self.status, self.headers = response.status_code, response.headers.raw

    def raw(self) -> Any:
        """Return the iterator of the body's bytes, as they come."""
        return self._response.aiter_raw()

    def decoded(self) -> Any:
        """Return the iterator of the body's bytes, decompressed."""
        return self._response.aiter_bytes()

    async def close(self) -> None:
        """Let the connection go; an answer that was not read to its end is cancelled."""
        self._load[0] -= 1
        self._upstream.in_flight -= 1
        await self._response.aclose()


def pick(
    upstreams: Sequence[Upstream],
    name: str | None,
    tried: Sequence[Upstream],
    *,
    chosen: bool = False,
) -> Upstream:
    """Return the upstream for a request: one that answers, lists its model, and has least to do.

    Args:
        upstreams: All of them, at least one.
        name: The model's name; None if the request names none.
        tried: Those that have failed on it, in this order: the first comes again first.
        chosen: Whether it is an expert of a generation.
    """
    now = time.monotonic()

    def rank(upstream: Upstream) -> tuple[bool, int, bool, bool, float, int, int]:
        last = max((n for n, each in enumerate(tried) if each is upstream), default=-1)
        fit, paused = upstream.fit(name, chosen=chosen), max(0.0, upstream.paused - now)
        down = not upstream.healthy
        return not upstream.reachable, last, down, fit == LACKS, paused, fit, upstream.in_flight

    return min(upstreams, key=rank)


def _names_of(model: Mapping[str, Any]) -> list[str]:
    """Return a listed model's name and its aliases."""
    aliases = model.get("aliases")
    return [
        str(name) for name in (model.get("id"), *(aliases if isinstance(aliases, list) else ()))
    ]


def _basic(address: str) -> bytes | None:
    """Return the header of an address's user and password; they stay in no URL, which is logged."""
    parts = urlsplit(address)
    if parts.username is None:
        return None
    both = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return b"Basic " + b64encode(both.encode())


def _read_key(path: Path) -> str:
    try:
        key = path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as e:
        raise redhost.errors.SettingsError(
            f"cannot read {path}", expected="the key of an upstream", found=str(e)
        ) from e
    if VISIBLE.fullmatch(key) is None:  # no header could hold it
        raise redhost.errors.SettingsError(
            f"the key in {path}",
            expected="one line of visible ASCII characters",
            found=f"{len(key.splitlines())} lines, {len(key)} characters",
        )
    return key


def _seconds(value: bytes) -> float:
    """Return the seconds that a header `Retry-After` names, as a number or as a date."""
    text = value.decode("latin-1").strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, OverflowError):
        return 0.0
