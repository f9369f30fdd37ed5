"""The settings of a gateway: its upstreams, the names that experts have there, and its limits."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

import redhost

__all__ = ["LOADS", "Limits", "Loads", "UpstreamSettings", "as_loads", "parse_limits"]
__all__ += ["upstreams_of", "without_password"]

S = TypeVar("S", bound=msgspec.Struct)

Loads = Literal["none", "vllm", "sglang", "llama.cpp"]
LOADS: tuple[Loads, ...] = ("none", "vllm", "sglang", "llama.cpp")
"""How an upstream gets adapters: it has them; the gateway loads them by vLLM's or SGLang's API; it
has them, and takes their scales with each request."""

USER = re.compile(r"(^|//)[^/?#]*@")
"""The user and the password of an address."""

AtLeastOne = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(gt=0, le=86400)]


class UpstreamSettings(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"
):
    """A server with OpenAI's API.

    Attributes:
        url: Its address, with or without ``/v1``.
        models: Expert id, or ``backbone``, → the name it has there.
        loads: How it gets adapters, see `LOADS`.
        key_file: A file with the key that the gateway's own requests to it need.
    """

    url: str
    models: dict[str, str] = {}
    loads: Loads = "none"
    key_file: str | None = None

    @property
    def address(self) -> str:
        """Its address without ``/v1``."""
        return self.url.rstrip("/").removesuffix("/v1").rstrip("/")

    @property
    def shown(self) -> str:
        """The same without a user and a password: for logs, metrics and answers."""
        return without_password(self.address)


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    """The numbers that bound what a gateway does.

    Attributes:
        requests: Maximum number of requests in progress; more get 429.
        retries: Times that a request is sent again before the first byte of its answer.
        connect: Seconds for a connection to an upstream.
        read: Seconds without a byte of an upstream's answer.
        body: Maximum number of bytes in a request's body.
        check: Seconds between two checks of an upstream.
        grace: Seconds between SIGTERM and the end of new requests.
    """

    requests: AtLeastOne = 1024
    retries: Annotated[int, Meta(ge=0, le=10)] = 2
    connect: Seconds = 5.0
    read: Seconds = 600.0
    body: AtLeastOne = 2**26
    check: Seconds = 2.0
    grace: Annotated[float, Meta(ge=0, le=600)] = 5.0


class _Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file of ``--config``."""

    upstream: list[UpstreamSettings]


def as_loads(given: str) -> Loads:
    """Return a kind of loading by its name."""
    found: Loads = msgspec.convert(given, Loads)
    return found


def parse_limits(limits: Sequence[str]) -> Limits:
    """Return the limits, given those that differ from the defaults as ``NAME=NUMBER``.

    Raises:
        UsageError: If one is unknown or out of its range.
    """
    try:
        return msgspec.convert(_pairs(limits, "--limit"), Limits, strict=False)
    except msgspec.ValidationError as e:
        names = (field.encode_name for field in msgspec.structs.fields(Limits))
        raise redhost.UsageError(
            "a --limit",
            expected=", ".join(f"{name}=NUMBER" for name in names),
            found=f"{', '.join(limits)}: {e}",
        ) from e


def upstreams_of(
    urls: Sequence[str], *, models: Sequence[str], loads: Loads, config: Path | None
) -> tuple[UpstreamSettings, ...]:
    """Return the upstreams of a command line.

    Args:
        urls: Addresses.
        models: ``ID=NAME``: the names that experts have at all of them.
        loads: How they get adapters.
        config: A file of TOML with further upstreams.

    Raises:
        UsageError: If there is none, an address or a name is invalid, or the file cannot be read.
    """
    names = _pairs(models, "--model")
    given = [UpstreamSettings(url=url, models=names, loads=loads) for url in urls]
    if config is not None:
        given += _read(config)
    if not given:
        raise redhost.UsageError(
            "a gateway needs something to stand before", expected="--upstream URL", found="none"
        )
    for upstream in given:
        _check_address(upstream.url)
    return tuple(given)


def without_password(url: str) -> str:
    """Return an address without a user and a password."""
    return USER.sub(r"\1", url)


def _check_address(url: str) -> None:
    shown = without_password(url)
    try:
        parts = urlsplit(url)
        wrong = parts.scheme not in {"http", "https"} or not parts.hostname or parts.port == 0
    except ValueError:  # brackets of no address, a port that is none
        wrong = True
    if wrong or {"?", "#"} & {*url}:
        raise redhost.UsageError(
            "an upstream's address",
            expected="http://HOST:PORT or https://…, without ? and #",
            found=shown,
            hint=f"Write http://{re.split('[?#]', shown.rpartition('//')[2])[0]}.",
        )


def _pairs(given: Sequence[str], option: str) -> dict[str, str]:
    found: Mapping[str, str] = dict(pair.partition("=")[::2] for pair in given)
    if wrong := [pair for pair in given if not all(pair.partition("="))]:
        raise redhost.UsageError(option, expected="NAME=VALUE", found=wrong[0])
    return dict(found)


def _read(path: Path) -> list[UpstreamSettings]:
    try:
        return msgspec.toml.decode(path.read_bytes(), type=_Config).upstream
    except (OSError, ValueError) as e:
        raise redhost.UsageError(
            f"cannot read {path}",
            expected="[[upstream]] with url, and models, loads or key-file",
            found=str(e),
        ) from e
