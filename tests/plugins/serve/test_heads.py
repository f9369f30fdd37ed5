"""What comes before a body: the Host, and as many headers as a request may have."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from redhost_serve.client import INFER, Client
from redhost_serve.limits import HEAD_BYTES
from redhost_serve.process import serving

TEXT = "What is 37 plus 12?"
HEAD = f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\n".encode()
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
MANY = 150 << 20


def exchange(url: str, head: str) -> str:
    """Send a head as it stands; return the status line of the answer."""
    host, _, port = url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(f"{head}\r\nConnection: close\r\n\r\n".encode("latin-1"))
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    return answer.decode("latin-1").partition("\r\n")[0]


@pytest.mark.parametrize(
    "host",
    [
        "[::1].evil.com",
        "[::1]evil.com",
        "[::1",
        "::1",
        "localhost.evil.com",
        "localhost:99999",
        "localhost:0",
        "localhost:",
        "localhost:80:80",
        "localhost:evil.com",
        "localhost:80@evil.com",
        "user@localhost",
        "localhost/evil.com",
        "localhost evil.com",
        "localhost,evil.com",
        "localhost\tevil.com",
        "[127.0.0.1]",
        "[localhost]",
        "127.0.0.1.nip.io",
        "0",
    ],
)
def test_a_host_is_read_strictly(shared, host) -> None:
    assert exchange(shared, f"GET / HTTP/1.1\r\nHost: {host}") == "HTTP/1.1 400 Bad Request"


@pytest.mark.parametrize("host", ["localhost", "[::1]:65535", "127.0.0.1:1", " LocalHost:080 "])
def test_a_host_of_this_machine_is_accepted_with_any_port(shared, host) -> None:
    assert exchange(shared, f"GET / HTTP/1.1\r\nHost: {host}") == "HTTP/1.1 200 OK"


def test_a_request_has_one_host(shared) -> None:
    assert exchange(shared, "GET / HTTP/1.1") == "HTTP/1.1 400 Bad Request"
    twice = "GET / HTTP/1.1\r\nHost: localhost\r\nHost: localhost"
    assert exchange(shared, twice) == "HTTP/1.1 400 Bad Request"
    assert exchange(shared, "GET / HTTP/1.0") == "HTTP/1.1 200 OK"  # older than the header
    assert exchange(shared, "GET / HTTP/1.0\r\nHost: evil.com") == "HTTP/1.1 400 Bad Request"


@pytest.mark.parametrize(
    "more",
    [
        "\r\n".join(f"X-{n}: a" for n in range(200)),
        "\r\n".join(f"X-{n}: {'a' * 1000}" for n in range(90)),
        f"X: {'a' * HEAD_BYTES}",
        f"{'X' * HEAD_BYTES}: a",
    ],
    ids=["many", "many and long", "a long value", "a long name"],
)
def test_too_many_or_too_long_headers_are_431(shared, more) -> None:
    first = exchange(shared, f"GET / HTTP/1.1\r\nHost: localhost\r\n{more}")
    assert first == "HTTP/1.1 431 Request Header Fields Too Large"


def test_a_long_address_is_431_and_what_clients_send_is_200(shared) -> None:
    path = "/v2/health/live?" + "a" * (HEAD_BYTES - 1000)
    more = "a" * 1000
    assert " 431 " in exchange(shared, f"GET {path} HTTP/1.1\r\nHost: localhost\r\nX: {more}")
    cookies = "\r\n".join(f"Cookie-{n}: {'a' * 1000}" for n in range(40))
    assert " 200 " in exchange(shared, f"GET / HTTP/1.1\r\nHost: localhost\r\n{cookies}")


FLOODS = {
    "one header": (HEAD + b"X: ", b"a" * 65536),
    "many headers": (HEAD, b"X: a\r\n" * 10_000),
    "a name": (HEAD, b"a" * 65536),
    "an address": (b"GET /", b"a" * 65536),
    "many trailers": (CHUNKED + b"1\r\na\r\n0\r\n", b"X: a\r\n" * 10_000),
    "one trailer": (CHUNKED + b"1\r\na\r\n0\r\nX: ", b"a" * 65536),
    "a chunk's extension": (CHUNKED + b"1;", b"a" * 65536),
}


@pytest.fixture(scope="module")
def process(composed_home: Path, tmp_path_factory: pytest.TempPathFactory):
    with serving(composed_home, log=tmp_path_factory.mktemp("heads") / "log") as server:
        yield server


@pytest.mark.parametrize("name", FLOODS)
def test_a_flood_of_headers_is_not_stored_and_ends_the_connection(process, name) -> None:
    first, piece = FLOODS[name]
    host, _, port = process.url.removeprefix("http://").partition(":")
    with Client(process.url) as client:
        assert client.infer([TEXT]).status == 200
        before, sent = process.memory(), 0
        with socket.create_connection((host, int(port)), timeout=20) as connection:
            connection.sendall(first)
            try:
                while sent < MANY:
                    connection.sendall(piece)
                    sent += len(piece)
            except OSError:
                pass
        assert sent < 20 << 20  # what the system's own buffers take
        assert process.memory() - before < 16 << 20
        assert client.infer([TEXT]).status == 200
