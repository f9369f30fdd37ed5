"""An index over HTTP: read within a time limit, logged in to, and never believed."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable, Iterator
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.request import Request

import pytest
from redhost_sync.fetched import archive_of, fetch_part
from redhost_sync.index import Index, Redirects, parse_page
from redhost_sync.locks import Part
from redhost_sync.sources import IndexSource, default_index, fitting

from redhost.registry.errors import InstallError, IntegrityError, MissingError, UsageError
from redhost.registry.package.readers import read_manifest
from redhost.registry.package.safetensors_check import sha256_hex

FILE = "red_expert_extra-0.1.0-py3-none-any.whl"
Answer = Callable[[BaseHTTPRequestHandler], None]


class Server:
    """A server of this machine, whose answers tests set by path."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self.logins: list[tuple[str, str | None]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.logins.append((self.path, self.headers.get("Authorization")))
                answer = outer.answers.get(self.path)
                if answer is None:
                    self.send_error(404)
                else:
                    answer(self)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                """Say nothing."""

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/simple"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def put(self, path: str, data: bytes, kind: str = "text/html") -> None:
        def answer(request: BaseHTTPRequestHandler) -> None:
            request.send_response(200)
            request.send_header("Content-Type", kind)
            request.send_header("Content-Length", str(len(data)))
            request.end_headers()
            request.wfile.write(data)

        self.answers[path] = answer

    def page(self, wheel: bytes, *, sha256: str | None = None) -> None:
        sha = sha256_hex(wheel) if sha256 is None else sha256
        link = f'<a href="../../files/{FILE}#sha256={sha}">{FILE}</a>'
        self.put("/simple/red-expert-extra/", link.encode())
        self.put(f"/files/{FILE}", wheel, "application/octet-stream")


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.http.shutdown()
    made.http.server_close()


@pytest.fixture
def wheel(draft: Any, tmp_path: Any) -> bytes:
    return draft("extra").write(tmp_path).read_bytes()


def part_of(content: bytes, **changes: Any) -> Part:
    manifest = archive_of(FILE, content)["red_expert_extra/expert.json"]
    _, digest = read_manifest(manifest).unwrap("extra")
    return Part(
        **{
            "kind": "expert",
            "id": "extra",
            "dist": "red-expert-extra",
            "version": "0.1.0",
            "digest": digest,
            **changes,
        }
    )


def source(server: Server, *, timeout: float = 5.0) -> IndexSource:
    return IndexSource(Index(server.url, timeout))


def test_pages_of_both_kinds_lead_to_the_same_bytes(server: Server, wheel: bytes) -> None:
    server.page(wheel)
    assert fetch_part(part_of(wheel), [source(server)]).data == wheel
    files = [
        {"filename": FILE, "url": f"/files/{FILE}", "hashes": {"sha256": sha256_hex(wheel)}},
        {"filename": "red_expert_extra-0.1.0.tar.gz", "url": "/files/x", "hashes": {}},
    ]
    kind = "application/vnd.pypi.simple.v1+json"
    server.put("/simple/red-expert-extra/", json.dumps({"files": files}).encode(), kind)
    assert fetch_part(part_of(wheel), [source(server)]).data == wheel


def test_links_start_from_the_base_that_a_page_names() -> None:
    """pip 1101 and nab 506: a base without an address is none, and only the first counts."""
    page = b"""<title>Links for x</title><base target="_top"><base href="../../files/">
    <base href="/later/"><a href="x-1.0-py3-none-any.whl">x</a><a href="/y/x-2.0.tar.gz">y</a>"""
    found = parse_page(page, "text/html", "https://index.example/simple/x/")
    assert [link.url for link in found.links] == [
        "https://index.example/files/x-1.0-py3-none-any.whl",
        "https://index.example/y/x-2.0.tar.gz",
    ]


def test_bytes_that_are_not_promised_are_refused(server: Server, wheel: bytes) -> None:
    server.page(wheel, sha256="0" * 64)
    with pytest.raises(IntegrityError, match="other bytes"):
        fetch_part(part_of(wheel), [source(server)])
    server.page(wheel)
    with pytest.raises(IntegrityError, match="the lock promises"):
        fetch_part(part_of(wheel, wheel="1" * 64), [source(server)])
    with pytest.raises(IntegrityError, match="not what the lock names"):
        fetch_part(part_of(wheel, digest="2" * 64), [source(server)])


def test_a_link_without_a_hash_is_held_to_the_lock(server: Server, wheel: bytes) -> None:
    """astral-sh/uv 13112: an index may promise nothing of a wheel."""
    server.page(wheel)
    server.put("/simple/red-expert-extra/", f'<a href="/files/{FILE}">{FILE}</a>'.encode())
    assert fetch_part(part_of(wheel), [source(server)]).data == wheel
    with pytest.raises(IntegrityError, match="not what the lock names"):
        fetch_part(part_of(wheel, digest="2" * 64), [source(server)])


def test_a_local_version_is_encoded_in_an_address(server: Server) -> None:
    """astral-sh/uv 13432: torch's own index writes %2B for the plus of 2.7.0+cpu."""
    name = "torch-2.7.0%2Bcpu-py3-none-any.whl"
    server.put("/simple/torch/", f'<a href="/files/{name}">torch</a>'.encode())
    server.put(f"/files/{name}", b"bytes")
    [link] = Index(server.url).links("torch")
    assert link.file == "torch-2.7.0+cpu-py3-none-any.whl"
    assert str(fitting(link.file, "torch")) == "2.7.0+cpu"
    assert Index(server.url).read(link) == b"bytes"


def test_another_version_is_named(server: Server, wheel: bytes) -> None:
    server.page(wheel)
    with pytest.raises(MissingError, match=r"red-expert-extra 0\.2\.0.*found 0\.1\.0 in"):
        fetch_part(part_of(wheel, version="0.2.0"), [source(server)])
    with pytest.raises(MissingError, match="none of that name"):
        fetch_part(part_of(wheel, dist="red-expert-other"), [source(server)])


def silent(request: BaseHTTPRequestHandler) -> None:
    time.sleep(1.5)


def dripping(request: BaseHTTPRequestHandler) -> None:
    """A byte at a time: no single read takes long."""
    request.send_response(200)
    request.end_headers()
    for _ in range(40):
        request.wfile.write(b" ")
        request.wfile.flush()
        time.sleep(0.05)


def cut_short(request: BaseHTTPRequestHandler) -> None:
    request.send_response(200)
    request.send_header("Content-Length", "1000")
    request.end_headers()
    request.wfile.write(b"<a href=")


def broken(request: BaseHTTPRequestHandler) -> None:
    request.send_error(500)


@pytest.mark.parametrize("answer", [silent, dripping, cut_short, broken])
def test_a_server_that_is_slow_or_ends_early_is_an_error_in_time(
    server: Server, answer: Answer
) -> None:
    server.answers["/simple/red-expert-extra/"] = answer
    start = time.monotonic()
    with pytest.raises(InstallError, match="Nothing was changed"):
        source(server, timeout=0.4).offers("red-expert-extra")
    assert time.monotonic() - start < 1.4


def test_a_server_that_is_gone_is_an_error(server: Server) -> None:
    server.http.server_close()
    with pytest.raises(InstallError):
        source(server, timeout=1).offers("red-expert-extra")


def promised_other_bytes(server: Server, wheel: bytes) -> None:
    server.page(wheel[:-1] + b"?", sha256=sha256_hex(wheel))


def other_bytes_and_their_hash(server: Server, wheel: bytes) -> None:
    server.page(wheel[:-1] + b"?")


def a_wheel_that_is_missing(server: Server, wheel: bytes) -> None:
    server.page(wheel)
    del server.answers[f"/files/{FILE}"]


def another_version(server: Server, wheel: bytes) -> None:
    other = FILE.replace("0.1.0", "0.2.0")
    server.put("/simple/red-expert-extra/", f'<a href="../../files/{other}">a</a>'.encode())


def a_slow_page(server: Server, wheel: bytes) -> None:
    server.answers["/simple/red-expert-extra/"] = silent


def a_slow_wheel(server: Server, wheel: bytes) -> None:
    server.page(wheel)
    server.answers[f"/files/{FILE}"] = dripping


def a_wheel_that_ends_early(server: Server, wheel: bytes) -> None:
    server.page(wheel)
    server.answers[f"/files/{FILE}"] = cut_short


def no_such_project(server: Server, wheel: bytes) -> None:
    """Nothing is there."""


def a_page_that_is_none(server: Server, wheel: bytes) -> None:
    server.put("/simple/red-expert-extra/", b"<title>Log in</title>")


LIES = (
    *(promised_other_bytes, other_bytes_and_their_hash, a_wheel_that_is_missing, another_version),
    *(a_slow_page, a_slow_wheel, a_wheel_that_ends_early, no_such_project, a_page_that_is_none),
)


def test_an_index_that_lies_is_slow_or_gone_is_one_line_and_sync_changes_nothing(
    project: Any, tmp_path: Path
) -> None:
    home, wheel = project.clone(tmp_path / "new"), (project.wheels / FILE).read_bytes()
    lock, servers = (home / "redhost.lock").read_bytes(), [Server() for _ in LIES]
    for lie, server in zip(LIES, servers, strict=True):
        lie(server, wheel)
    urls = [*(server.url for server in servers), "http://me:secret@127.0.0.1:9/simple"]
    commands = [("sync", "--index-url", url, "--timeout", "0.5") for url in urls]
    done = project.venv.session(*commands, home=home)
    for name, (code, out, err) in zip((*LIES, "gone"), done, strict=True):
        assert code in {1, 3} and not out and err.count("\n") == 1, (name, code, out, err)
        assert "Traceback" not in err and "secret" not in err and len(err) < 600, (name, err)
    assert project.infos() == [] and (home / "redhost.lock").read_bytes() == lock
    assert not (home / "current").exists() and not (home / "sync").exists()
    servers[0].page(wheel)  # the control: it tells the truth
    assert project.sync(home, "--index-url", servers[0].url, "--dry-run").returncode == 0
    for server in servers:
        server.http.shutdown()
        server.http.server_close()


def test_credentials_go_to_their_own_server_and_are_not_printed(
    server: Server, wheel: bytes
) -> None:
    other = Server()
    other.put("/moved", b"<title>Links for away</title>")

    def redirect(request: BaseHTTPRequestHandler) -> None:
        request.send_response(302)
        request.send_header("Location", f"http://127.0.0.1:{other.http.server_port}/moved")
        request.end_headers()

    server.page(wheel)
    server.answers["/simple/away/"] = redirect
    index = Index(server.url.replace("//", "//me:geheim@"), 5.0)
    fetch_part(part_of(wheel), [IndexSource(index)])
    assert index.links("away") == ()
    login = "Basic " + base64.b64encode(b"me:geheim").decode()
    assert {who for _, who in server.logins} == {login}
    assert other.logins == [("/moved", None)]
    with pytest.raises(MissingError) as raised:
        fetch_part(part_of(wheel, version="9"), [IndexSource(index)])
    assert "geheim" not in str(raised.value) and "127.0.0.1" in str(raised.value)
    other.http.shutdown()
    other.http.server_close()


def test_only_a_web_address_is_an_index() -> None:
    with pytest.raises(UsageError):
        Index("ftp://somewhere/simple").links("x")


def test_the_index_of_pip_is_the_default(monkeypatch: Any) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://me:geheim@here/simple?token=1")
    assert default_index().name == "http://here/simple"


@pytest.mark.parametrize(
    ("file", "version"),
    [
        (FILE, "0.1.0"),
        ("red_expert_extra-0.1.0-cp27-cp27m-win32.whl", None),
        ("red_expert_extra2-0.1.0-py3-none-any.whl", None),
        ("red_expert_extra-0.1.0.tar.gz", None),
        ("red_expert_extra.whl", None),
    ],
)
def test_only_wheels_for_this_machine_are_offered(file: str, version: str | None) -> None:
    found = fitting(file, "red-expert-extra")
    assert (None if found is None else str(found)) == version


def test_no_redirect_leaves_https(server: Server) -> None:
    redirects, headers = Redirects(), Message()
    secure = Request("https://index.example/simple/")
    for place in ("http://index.example/x", "ftp://index.example/x", "file:///etc/passwd"):
        with pytest.raises(ValueError, match="a redirect from https"):
            redirects.redirect_request(secure, None, 302, "", headers, place)
    followed = redirects.redirect_request(secure, None, 302, "", headers, "https://files.example/x")
    assert followed is not None and followed.full_url == "https://files.example/x"

    def away(request: BaseHTTPRequestHandler) -> None:
        request.send_response(302)
        request.send_header("Location", "ftp://me:secret@127.0.0.1/x")
        request.end_headers()

    server.answers["/simple/red-expert-extra/"] = away
    with pytest.raises(InstallError, match=r"a redirect from http to ftp://127\.0\.0\.1/x"):
        Index(server.url).links("red-expert-extra")
