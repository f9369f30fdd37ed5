"""Read an index of wheels (PEP 503, PEP 691) within a time limit, without an installer.

pip can download and uv cannot; neither limits how long a slow server takes. Credentials come from
the address that was typed or from ``~/.netrc``, are sent to that server alone, and never printed.
"""

from __future__ import annotations

import base64
import http.client
import json
import netrc
import time
from contextlib import suppress
from dataclasses import dataclass
from html.parser import HTMLParser
from urllib.error import HTTPError
from urllib.parse import SplitResult, unquote, urldefrag, urljoin, urlsplit
from urllib.request import Request, urlopen

from redhost.registry.errors import InstallError, UsageError
from redhost.registry.package.discover import canonical

TIMEOUT = 30.0
"""Seconds that a server may be silent, and that a small file may take altogether."""

SLOWEST = 50_000
"""Bytes a second; a file may take as long as it would at this rate, beside `TIMEOUT`."""

MAX_PAGE, MAX_WHEEL, CHUNK = 2**26, 2**32, 2**16

ACCEPT = "application/vnd.pypi.simple.v1+json, text/html;q=0.5"


@dataclass(frozen=True)
class Link:
    """A file of an index.

    Attributes:
        file: Its name.
        url: Its address.
        sha256: What the index promises; empty if it does not.
    """

    file: str
    url: str
    sha256: str = ""


@dataclass(frozen=True)
class Index:
    """An index at an address.

    Attributes:
        url: The address, which may have credentials.
        timeout: See `TIMEOUT`.
    """

    url: str
    timeout: float = TIMEOUT

    def __str__(self) -> str:
        return _public(self.url)

    def links(self, dist: str) -> tuple[Link, ...]:
        """Return the files of a distribution; none if the index does not know it.

        Raises:
            InstallError: If it cannot be read in time.
        """
        page = urljoin(f"{self.url.rstrip('/')}/", f"{canonical(dist)}/")
        data, kind = self._get(page, most=MAX_PAGE, absent_is_empty=True)
        try:
            found = _of_json(data) if "json" in kind else _of_html(data)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
            raise InstallError(f"cannot read {_public(page)}", found=str(e)[:120]) from e
        return tuple(Link(file, urljoin(page, url), sha) for file, url, sha in found)

    def read(self, link: Link, *, most: int = MAX_WHEEL) -> bytes:
        """Download a file of at most so many bytes.

        Raises:
            InstallError: If it cannot be read in time.
        """
        return self._get(link.url, most=most)[0]

    def _get(self, url: str, *, most: int, absent_is_empty: bool = False) -> tuple[bytes, str]:
        problem = f"cannot read {_public(url)}"
        try:
            with urlopen(self._request(url), timeout=self.timeout) as answer:  # noqa: S310
                size = int(answer.headers.get("Content-Length") or 0)
                limit = time.monotonic() + self.timeout + min(size, most) / SLOWEST
                data = bytearray()
                while chunk := answer.read1(CHUNK):
                    data += chunk
                    if time.monotonic() > limit or len(data) > most:
                        raise InstallError(
                            problem,
                            expected=f"all of it, within {self.timeout:g} s and at most {most:,} B",
                            found=f"{len(data):,} B so far",
                            hint=_UNCHANGED,
                        )
                if len(data) < size:
                    raise InstallError(
                        problem,
                        expected=f"{size:,} B",
                        found=f"{len(data):,} B, then the end",
                        hint=_UNCHANGED,
                    )
                return bytes(data), answer.headers.get_content_type()
        except HTTPError as e:
            if absent_is_empty and e.code == http.client.NOT_FOUND:
                return b"", "text/html"
            raise InstallError(problem, found=f"HTTP {e.code}", hint=_UNCHANGED) from e
        except (OSError, http.client.HTTPException, ValueError) as e:
            found = str(getattr(e, "reason", e)) or type(e).__name__
            raise InstallError(problem, found=found[:200], hint=_UNCHANGED) from e

    def _request(self, url: str) -> Request:
        """Return the request of a file; what logs in is not sent on when the server redirects."""
        parts, own = urlsplit(url), urlsplit(self.url)
        if parts.scheme not in {"http", "https"}:
            raise UsageError(
                f"cannot read {_public(url)}",
                expected="an index at http:// or https://",
                found=parts.scheme or "no scheme",
                hint="A folder of wheels is named with --from FOLDER.",
            )
        request = Request(_without_login(parts), headers={"Accept": ACCEPT})  # noqa: S310
        same = (parts.scheme, parts.hostname, parts.port) == (own.scheme, own.hostname, own.port)
        if login := _login(parts) or (_login(own) if same else None) or _stored(parts):
            request.add_unredirected_header("Authorization", f"Basic {login}")
        return request


_UNCHANGED = "Nothing was changed."


def _public(url: str) -> str:
    """Return an address as it may be printed: without credentials or a query."""
    return urlsplit(_without_login(urlsplit(url)))._replace(query="", fragment="").geturl()


def _without_login(parts: SplitResult) -> str:
    return urldefrag(parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()).url


def _login(parts: SplitResult) -> str | None:
    if not parts.username:
        return None
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return base64.b64encode(pair.encode()).decode()


def _stored(parts: SplitResult) -> str | None:
    """Return what ``~/.netrc`` has for a server."""
    with suppress(OSError, netrc.NetrcParseError):
        if found := netrc.netrc().authenticators(parts.hostname or ""):
            return base64.b64encode(f"{found[0]}:{found[2]}".encode()).decode()
    return None


Found = list[tuple[str, str, str]]
"""Name, address and sha256 of files."""


def _of_json(data: bytes) -> Found:
    files = json.loads(data)["files"]
    return [(f["filename"], f["url"], f.get("hashes", {}).get("sha256", "")) for f in files]


def _of_html(data: bytes) -> Found:
    page = _Page()
    page.feed(data.decode("utf-8", "replace"))
    found = Found()
    for address in page.addresses:
        url, fragment = urldefrag(address)
        algorithm, _, value = fragment.partition("=")
        file = unquote(urlsplit(url).path.rpartition("/")[2])
        found.append((file, url, value if algorithm == "sha256" else ""))
    return found


class _Page(HTMLParser):
    """The addresses of a page's links."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect the address of a link."""
        values = (value for name, value in attrs if tag == "a" and name == "href")
        self.addresses += filter(None, values)
