"""What is wrong is 4xx, and changes nothing: bodies, lengths, slow and vanishing clients."""

from __future__ import annotations

import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from redhost_serve.client import INFER, Client
from redhost_serve.server import running
from redhost_serve.service import Options

TEXT = "What is 37 plus 12?"


def infer(tensor: dict[str, Any], **more: Any) -> dict[str, Any]:
    plain = {"name": "text", "datatype": "BYTES", "shape": [1], "data": [TEXT]}
    return {"inputs": [{**plain, **tensor}], **more}


NASTY: dict[str, bytes] = {
    "nothing": b"",
    "not JSON": b"hello",
    "cut short": b'{"inputs": [{"name": "te',
    "two values": b"{} {}",
    "a byte order mark": b"\xef\xbb\xbf{}",
    "not UTF-8": b'{"inputs": "\xff\xfe"}',
    "UTF-16": json.dumps(infer({})).encode("utf-16"),
    "a lone surrogate": json.dumps(infer({"data": ["\ud800"]})).encode(),
    "half a pair": json.dumps(infer({"data": ["a\udc00b"]})).encode(),
    "a lone surrogate as a key": b'{"\\ud800": 1}',
    "NaN": b'{"inputs":[{"name":"text","datatype":"BYTES","shape":[NaN],"data":["a"]}]}',
    "NaN alone": b"NaN",
    "Infinity": b'{"inputs": Infinity}',
    "a huge number": b'{"inputs": [{"name": "text", "shape": [1e400]}]}',
    "a long integer": b'{"inputs":[{"shape":[' + b"9" * 5000 + b"]}]}",
    "deep arrays": b"[" * 100_000,
    "deep objects": b'{"a":' * 100_000,
    "null": b"null",
    "an array": b"[]",
    "a string": b'"inputs"',
    "no inputs": b'{"inputs": []}',
    "inputs of another kind": b'{"inputs": 5}',
    "two tensors": json.dumps({"inputs": infer({})["inputs"] * 2}).encode(),
    "another tensor": json.dumps(infer({"name": "image"})).encode(),
    "another type": json.dumps(infer({"datatype": "FP32"})).encode(),
    "numbers as data": json.dumps(infer({"data": [1]})).encode(),
    "null as data": json.dumps(infer({"data": [None]})).encode(),
    "no data": json.dumps(infer({"data": []})).encode(),
    "an empty text": json.dumps(infer({"data": [""]})).encode(),
    "a negative shape": json.dumps(infer({"shape": [-1]})).encode(),
    "another shape": json.dumps(infer({"shape": [2]})).encode(),
    "too many texts": json.dumps(infer({"shape": [65], "data": ["a"] * 65})).encode(),
    "too many nested": json.dumps(infer({"shape": [2, 64], "data": [["a"] * 64] * 2})).encode(),
    "a long text": json.dumps(infer({"data": ["a" * 5000]})).encode(),
    "an unknown output": json.dumps(infer({}, outputs=[{"name": "logits"}])).encode(),
    "an id of another kind": json.dumps(infer({}, id=7)).encode(),
    "zero bytes": b"\x00" * 64,
}


def reply_to(url: str, *lines: str) -> str:
    """Send a request as it stands; return the reply."""
    address = url.removeprefix("http://").split(":")
    with socket.create_connection((address[0], int(address[1])), timeout=10) as connection:
        connection.sendall("\r\n".join([*lines, "Connection: close", "", ""]).encode("latin-1"))
        return b"".join(iter(lambda: connection.recv(65536), b"")).decode("latin-1")


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8080",
        "127.0.0.1.evil.example",
        "localhost@evil",
        "[::2]",
        "",
        "é",
    ],
)
def test_a_host_that_is_not_ours_is_refused(shared, host) -> None:
    """A page elsewhere could make its own name lead to this machine, and read what is served."""
    for path in ("/", "/v2/health/live", "/v2/health/live/", "/nowhere"):
        reply = reply_to(shared, f"GET {path} HTTP/1.1", f"Host: {host}")
        assert reply.startswith("HTTP/1.1 400 ") and (not host or host not in reply)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:99", "[::1]:8080"])
def test_a_host_that_is_ours_is_answered_and_never_sent_elsewhere(shared, host) -> None:
    assert reply_to(shared, "GET /v2/health/live HTTP/1.1", f"Host: {host}").startswith(
        "HTTP/1.1 200 "
    )
    reply = reply_to(shared, "GET /v2/health/live/ HTTP/1.1", f"Host: {host}")
    assert reply.startswith("HTTP/1.1 404 ") and "location" not in reply.lower()


def test_more_names_may_be_allowed(composed_home, open_live) -> None:
    with running(open_live(composed_home), options=Options(hosts=("Box.example",))) as (url, _):
        for host, status in (("box.example", 200), ("other.example", 400)):
            assert f" {status} " in reply_to(url, "GET / HTTP/1.1", f"Host: {host}").splitlines()[0]


@pytest.mark.parametrize("name", NASTY)
def test_a_nasty_body_is_400_and_changes_nothing(shared, name) -> None:
    with Client(shared) as client:
        before = client.infer([TEXT]).body
        reply = client.post(INFER, NASTY[name])
        assert reply.status == 400 and set(reply.body) == {"error"}
        assert client.infer([TEXT]).body == before


def test_nasty_bodies_do_break_a_handler_that_repeats_its_input() -> None:
    """Control: FastAPI as it comes answers some of these with 500."""
    from fastapi import FastAPI
    from pydantic import BaseModel
    from starlette.testclient import TestClient

    class Body(BaseModel):
        inputs: list[str]

    app = FastAPI()

    async def route(body: Body) -> dict[str, str]:
        return {}

    route.__annotations__["body"] = Body
    app.post("/")(route)
    client = TestClient(app, raise_server_exceptions=False)
    statuses = {
        name: client.post(
            "/", content=data, headers={"content-type": "application/json"}
        ).status_code
        for name, data in NASTY.items()
    }
    assert statuses["NaN alone"] == 500 or statuses["NaN"] == 500


def raw(url: str, data: bytes, *, more: bytes = b"", pause: float = 0.0) -> bytes:
    """Send bytes as they are; return what comes back until the other side is quiet or gone."""
    host, _, port = url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(data)
        if more:
            time.sleep(pause)
            connection.sendall(more)
        return connection.recv(65536)


HEAD = f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n".encode()


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def test_a_body_over_the_limit_is_413_before_it_is_sent(shared) -> None:
    assert status(raw(shared, HEAD + b"Content-Length: 104857600\r\n\r\n")) == 413
    assert status(raw(shared, HEAD + b"Content-Length: " + b"9" * 400 + b"\r\n\r\n")) in {400, 413}


def test_a_body_without_a_length_is_413_at_the_first_byte_too_many(shared) -> None:
    chunk = b"10000\r\n" + b"a" * 0x10000 + b"\r\n"
    assert status(raw(shared, HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * 17)) == 413


def test_without_the_guard_a_long_body_is_read_to_its_end(home, open_live) -> None:
    """Control: the same bytes reach the route, which finds that they are no JSON."""
    chunks = (b"10000\r\n" + b"a" * 0x10000 + b"\r\n") * 17 + b"0\r\n\r\n"
    with running(open_live(home), options=Options(body=2**40)) as (url, _):
        assert status(raw(url, HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunks)) == 400


def test_a_client_that_sends_it_all_reads_its_413_and_may_go_on(shared) -> None:
    with Client(shared) as client:
        assert client.post(INFER, b"a" * (4 << 20)).status == 413
        assert client.infer([TEXT]).status == 200


def test_a_slow_client_gets_408_and_others_wait_for_nobody(shared) -> None:
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(raw, shared, HEAD + b"Content-Length: 10\r\n\r\n{")
        with Client(shared) as client:
            assert client.infer([TEXT]).status == 200
        assert status(slow.result()) == 408


@pytest.mark.parametrize(
    "request_line",
    [
        b"\x16\x03\x01\x02\x00",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\r\n" * 9 + b"x\r\n\r\n",
    ],
)
def test_what_is_no_http_is_400(shared, request_line) -> None:
    answer = raw(shared, request_line + b"\r\n\r\n")
    assert answer == b"" or status(answer) in {400, 505}
    with Client(shared) as client:
        assert client.infer([TEXT]).status == 200


def test_a_client_that_hangs_up_disturbs_nobody(shared) -> None:
    host, _, port = shared.removeprefix("http://").partition(":")
    body = json.dumps(infer({})).encode()
    for _ in range(20):
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(HEAD + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
    with Client(shared) as client:
        assert client.infer([TEXT]).output("label") == ["49"]
