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
from dataclasses import dataclass, replace
from functools import cached_property
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import SplitResult, unquote, urldefrag, urljoin, urlsplit
from urllib.request import HTTPRedirectHandler, OpenerDirector, Request, build_opener

from redhost.registry.atomic import read_regular
from redhost.registry.errors import InstallError, StoreError, UsageError
from redhost.registry.package.discover import canonical

TIMEOUT = 30.0
"""Seconds that a server may be silent, and that a small file may take altogether."""

SLOWEST = 50_000
"""Bytes a second; a file may take as long as it would at this rate, beside `TIMEOUT`."""

MAX_PAGE, MAX_WHEEL, MAX_SIGNATURE, CHUNK = 2**26, 2**32, 2**16, 2**16

FILES = (".whl", ".tar.gz", ".zip", ".tar.bz2", ".tar.xz", ".tgz", ".egg", ".exe", ".metadata")
"""How the names of files of an index end."""

TITLES = ("links for", "index of", "directory listing")
"""What names a page that has links to files, or a folder of them."""

ACCEPT = "application/vnd.pypi.simple.v1+json, text/html;q=0.5"


@dataclass(frozen=True)
class Link:
    """A file of an index.

    Attributes:
        file: Its name.
        url: Its address.
        sha256: What the index promises; empty if it does not.
        yanked: Why it was called back (PEP 592), which may be empty; None if it was not.
        requires_python: The versions of Python that it needs; empty if the index does not say.
        metadata: Whether its METADATA lies beside it (PEP 658).
    """

    file: str
    url: str
    sha256: str = ""
    yanked: str | None = None
    requires_python: str = ""
    metadata: bool = False


@dataclass(frozen=True)
class Project:
    """What an index says of a distribution.

    Attributes:
        links: Its files.
        status: ``archived``, ``quarantined`` or ``deprecated`` (PEP 792); empty or ``active``
            otherwise.
        reason: Why.
        known: Whether the index has a page of it.
    """

    links: tuple[Link, ...] = ()
    status: str = ""
    reason: str = ""
    known: bool = True


class NoPageError(InstallError):
    """A server answers with something that is no page of an index."""


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
        return self.project(dist).links

    def project(self, dist: str) -> Project:
        """Return what the index says of a distribution.

        Raises:
            InstallError: If it cannot be read in time.
        """
        page = urljoin(f"{self.url.rstrip('/')}/", f"{canonical(dist)}/")
        answer = self._get(page, most=MAX_PAGE, absent_is_empty=True)
        if answer is None:
            return Project(known=False)
        try:
            return parse_page(*answer, page)
        except NoPageError as e:
            raise NoPageError(f"cannot read {self}", expected=e.expected, found=e.problem) from e
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
            raise InstallError(f"cannot read {_public(page)}", found=str(e)[:120]) from e

    def read(self, link: Link, *, most: int = MAX_WHEEL) -> bytes:
        """Download a file of at most so many bytes.

        Raises:
            InstallError: If it cannot be read in time.
        """
        answer = self._get(link.url, most=most)
        return b"" if answer is None else answer[0]

    def beside(self, name: str, *, most: int) -> bytes | None:
        """Download a file of the index itself; None if there is none.

        Raises:
            InstallError: If it cannot be read in time.
        """
        url = urljoin(f"{self.url.rstrip('/')}/", name)
        answer = self._get(url, most=most, absent_is_empty=True)
        return None if answer is None else answer[0]

    @cached_property
    def _opener(self) -> OpenerDirector:
        return build_opener(Redirects)

    def _get(
        self, url: str, *, most: int, absent_is_empty: bool = False
    ) -> tuple[bytes, str] | None:
        problem = f"cannot read {_public(url)}"
        try:
            with self._opener.open(self._request(url), timeout=self.timeout) as answer:
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
                return None
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


class Redirects(HTTPRedirectHandler):
    """Follow redirects to servers, and none that leaves https."""

    def redirect_request(
        self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> Request | None:
        """Return the request to follow with."""
        scheme = urlsplit(newurl).scheme
        if scheme not in {"http", "https"} or (req.type == "https" and scheme != "https"):
            raise ValueError(f"a redirect from {req.type} to {_public(newurl)}")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def signature_of(link: Link) -> Link:
    """Return where a wheel's signature may be: beside it, as an index has no place for one."""
    parts = urlsplit(link.url)
    return replace(link, url=parts._replace(path=f"{parts.path}.sig").geturl())


def read_page(folder: Path, dist: str) -> Project | None:
    """Return what a folder's page of a distribution says; None if it has no such page.

    Only links to files are kept: a page in a folder sends nobody to the network.

    Raises:
        StoreError: If it cannot be read.
    """
    page = folder / canonical(dist) / "index.html"
    if not page.is_file():
        return None
    problem = f"cannot read {page}"
    try:
        data = read_regular(page, limit=MAX_PAGE)
        found = parse_page(data, "text/html", page.resolve().as_uri())
        local = tuple(link for link in found.links if urlsplit(link.url).scheme == "file")
    except NoPageError as e:
        raise StoreError(problem, expected=e.expected, found=e.problem) from e
    except (OSError, ValueError) as e:  # a link may be malformed
        raise StoreError(problem, found=str(e)[:120]) from e
    return replace(found, links=local)


def parse_page(data: bytes, kind: str, page: str) -> Project:
    """Return what a page of an index says.

    Args:
        data: The page.
        kind: Its content type.
        page: Its address.

    Raises:
        NoPageError: If it is HTML, and no page of an index.
    """
    found = _of_json(data) if "json" in kind else _of_html(data, page)
    links = (replace(link, url=urljoin(page, link.url)) for link in found.links)
    return replace(found, links=tuple(links))


def _of_json(data: bytes) -> Project:
    page = json.loads(data)
    status = page.get("project-status") or {}
    return Project(
        links=tuple(
            Link(
                file=f["filename"],
                url=f["url"],
                sha256=f.get("hashes", {}).get("sha256", ""),
                yanked=_yanked(f.get("yanked")),
                requires_python=f.get("requires-python") or "",
                metadata=bool(f.get("core-metadata") or f.get("dist-info-metadata")),
            )
            for f in page["files"]
        ),
        status=str(status.get("status") or ""),
        reason=str(status.get("reason") or ""),
    )


def _yanked(value: object) -> str | None:
    """Return the reason of a yank, which JSON writes as true or as a text."""
    return None if not value else value if isinstance(value, str) else ""


def _of_html(data: bytes, where: str) -> Project:
    page = _Page()
    page.feed(data.decode("utf-8", "replace"))
    status = page.named.get("pypi:project-status", "")
    reason = page.named.get("pypi:project-status-reason", "")
    if not page.is_simple:
        expected = "a page of links (PEP 503) or its JSON (PEP 691)"
        raise NoPageError("another page", expected=expected)
    base = urljoin(where, page.base)
    links = (replace(link, url=urljoin(base, link.url)) for link in page.links)
    return Project(links=tuple(links), status=status, reason=reason)


class _Page(HTMLParser):
    """The links of a page, and what its head names.

    Attributes:
        links: The links.
        named: Name → content of each meta element.
        title: The text of title and first heading.
        base: What relative links start from, if not from the page: its first base element.
    """

    def __init__(self) -> None:
        super().__init__()
        self.links: list[Link] = []
        self.named: dict[str, str] = {}
        self.title = self.base = ""
        self._inside = ""

    @property
    def is_simple(self) -> bool:
        """Whether it is the page of a project, which may have no file."""
        has_file = any(link.file.endswith(FILES) for link in self.links)
        named = any(name.startswith("pypi:") for name in self.named)
        return has_file or named or any(words in self.title.casefold() for words in TITLES)

    def handle_endtag(self, tag: str) -> None:
        """Leave a title or heading."""
        if tag == self._inside:
            self._inside = ""

    def handle_data(self, data: str) -> None:
        """Collect title and heading."""
        if self._inside:
            self.title += data

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect a link, or what a meta element names."""
        given = dict(attrs)
        if tag in {"title", "h1"}:
            self._inside = tag
        if tag == "meta":
            self.named[given.get("name") or ""] = given.get("content") or ""
        if tag == "base":
            self.base = self.base or given.get("href") or ""
        if tag != "a" or not (address := given.get("href")):
            return
        url, fragment = urldefrag(address)
        algorithm, _, value = fragment.partition("=")
        link = Link(
            file=unquote(urlsplit(url).path.rpartition("/")[2]),
            url=url,
            sha256=value if algorithm == "sha256" else "",
            yanked=given.get("data-yanked") or ("" if "data-yanked" in given else None),
            requires_python=given.get("data-requires-python") or "",
            metadata=not {"data-core-metadata", "data-dist-info-metadata"}.isdisjoint(given),
        )
        self.links.append(link)
