"""HTTP as bytes: what of a request reaches an upstream, and of its answer the client."""

from __future__ import annotations

import socket
import socketserver
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from threading import Thread
from typing import Any

import httpx2
import pytest

HOST = b"Host: localhost\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
EVENTS = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
    b"Connection: keep-alive, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\nTrailer: X-Sum\r\n\r\n"
    b"9\r\ndata: 0\n\n\r\n9\r\ndata: 1\n\n\r\n0\r\nX-Sum: 3\r\n\r\n"
)
ANSWERS: Mapping[str, bytes] = {
    "events": EVENTS,
    "not-modified": b"HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n",
    "wrong": b"HTTP/1.1 200 OK\r\nno header\r\n\r\n",
    "long": b"HTTP/1.1 200 OK\r\nX: " + 200_000 * b"a" + b"\r\nContent-Length: 2\r\n\r\nok",
}


class Upstream(socketserver.ThreadingTCPServer):
    """A server that answers by the last part of the path, and remembers what it read."""

    daemon_threads = True

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        super().__init__(("127.0.0.1", 0), Handler)


class Handler(socketserver.StreamRequestHandler):
    """One request of a connection."""

    server: Upstream  # pyright: ignore[reportIncompatibleVariableOverride]

    def handle(self) -> None:
        lines = [self.rfile.readline()]
        while lines[-1].strip():
            lines.append(self.rfile.readline())
        length = next((int(x[15:]) for x in lines if x.lower().startswith(b"content-length:")), 0)
        path = lines[0].split()[1].decode().rpartition("/")[2]
        request = b"".join(lines) + self.rfile.read(length)
        if path != "models":
            self.server.seen.append(request)
        self.wfile.write(ANSWERS.get(path, OK))


@pytest.fixture
def raw(gateway_of, tmp_path) -> Iterator[tuple[str, Upstream, Any]]:
    """A gateway's address, the upstream, and the gateway; no generation chooses."""
    with Upstream() as server:
        Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_address[1]}"
        url, gateway = gateway_of(tmp_path / "empty", address, limits={"check": 60, "body": 1000})
        yield url, server, gateway
        server.shutdown()


def exchange(url: str, *parts: bytes) -> bytes:
    """Send bytes; return all that comes until the connection is closed."""
    found = b""
    port = int(url.rpartition(":")[2])
    with closing(socket.create_connection(("127.0.0.1", port), timeout=10)) as client:
        for part in parts:
            client.sendall(part)
            time.sleep(0.02)
        while more := client.recv(2**16):
            found += more
    return found


def test_headers_of_one_connection_alone_are_not_passed_on(raw) -> None:
    url, server, _ = raw
    hops = (
        b"Connection: close, X-Mine\r\nX-Mine: 1\r\nTE: trailers\r\nTrailer: X-Sum\r\n"
        b"Keep-Alive: 1\r\nUpgrade: websocket\r\nProxy-Authorization: Basic eA==\r\n"
    )
    own = b"Authorization: Bearer key\r\nX-Yours: 2\r\n"
    answer = exchange(url, b"GET /v1/events HTTP/1.1\r\n" + HOST + hops + own + b"\r\n")
    names = {line.partition(b":")[0].lower() for line in server.seen[0].split(b"\r\n")[1:-2]}
    assert names == {b"host", b"authorization", b"x-yours"}
    head, _, body = answer.partition(b"\r\n\r\n")
    assert body == b"9\r\ndata: 0\n\n\r\n9\r\ndata: 1\n\n\r\n0\r\n\r\n"
    lines = {line.lower() for line in head.split(b"\r\n")[1:]}
    assert lines == {
        b"content-type: text/event-stream", b"transfer-encoding: chunked", b"connection: close"
    }  # fmt: skip


def test_a_client_of_http_1_0_gets_no_chunks(raw) -> None:
    answer = exchange(raw[0], b"GET /v1/events HTTP/1.0\r\n" + HOST + b"\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert body == b"data: 0\n\ndata: 1\n\n" and b"transfer-encoding" not in head.lower()


def test_a_trailer_is_no_header_upstream(raw) -> None:
    url, server, _ = raw
    head = b"POST /v1/x HTTP/1.1\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n" + HOST
    chunks = b"\r\n3\r\nabc\r\n0\r\nAuthorization: Bearer other\r\n\r\n"
    for parts in ([head + chunks], [head, chunks]):
        assert exchange(url, *parts).startswith(b"HTTP/1.1 200")
        assert b"other" not in server.seen[-1] and b"Content-Length: 3" in server.seen[-1]


@pytest.mark.parametrize(
    "headers",
    [
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        b"Transfer-Encoding: gzip, chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        b"Content-Length: +3\r\n\r\nabc",
        b"Host: other\r\n\r\n",
        b"X-A : a\r\n\r\n",
        b"X-A: a\x00b\r\n\r\n",
    ],
)
def test_what_two_proxies_may_read_differently_is_refused(raw, headers) -> None:
    url, server, _ = raw
    after = b"GET /v1/smuggled HTTP/1.1\r\nConnection: close\r\n" + HOST + b"\r\n"
    answer = exchange(url, b"POST /v1/x HTTP/1.1\r\n" + HOST + headers + after)
    assert answer.startswith(b"HTTP/1.1 400") and answer.count(b"HTTP/1.1") == 1
    assert not server.seen


def test_an_address_in_the_request_line_counts_as_its_host(raw) -> None:
    url, server, _ = raw
    line = b"GET http://localhost:1/v1/x?a=%2F HTTP/1.1\r\nConnection: close\r\n"
    assert exchange(url, line + HOST + b"\r\n").startswith(b"HTTP/1.1 200")
    assert server.seen[0].startswith(b"GET /v1/x?a=%2F HTTP/1.1\r\n")


def test_a_body_over_the_limit_ends_its_connection(raw) -> None:
    url, server, _ = raw
    head = b"POST /v1/x HTTP/1.1\r\nContent-Length: 5000\r\n" + HOST + b"\r\n"
    answer = exchange(url, head, 2000 * b"a")
    assert answer.startswith(b"HTTP/1.1 413") and b"connection: close" in answer.lower()
    assert not server.seen


def test_an_answer_without_a_body_has_none(raw) -> None:
    head = b"GET /v1/not-modified HTTP/1.1\r\nConnection: close\r\n"
    answer = exchange(raw[0], head + HOST + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 304") and answer.endswith(b"\r\n\r\n")


@pytest.mark.parametrize("path", ["wrong", "long"])
def test_after_an_answer_that_is_no_http_no_request_is_sent_again(raw, path) -> None:
    """The upstream has worked on the request, and answers others."""
    url, server, gateway = raw
    answer = httpx2.get(f"{url}/v1/{path}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_broke_off")
    assert len(server.seen) == 1 and gateway.upstreams[0].healthy
