"""Bodies over the limit, whose clients read why; and bodies that are compressed."""

from __future__ import annotations

import gzip
import http.client
import json
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable
from typing import Any

import httpx2
import pytest
import requests
from redhost_serve.client import INFER, Client
from redhost_serve.server import running
from redhost_serve.service import Options

TENSOR = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["What is 37 plus 12?"]}
BODY = json.dumps({"inputs": [TENSOR]}).encode()
LIMIT = 2**20


def by_urllib(url: str, body: bytes) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(url, body, timeout=30) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as e:
        with e:
            return e.code, e.read()


def by_requests(url: str, body: bytes) -> tuple[int, bytes]:
    with requests.Session() as session, session.post(url, data=body, timeout=30) as answer:
        return answer.status_code, answer.content


def by_pieces(url: str, body: bytes) -> tuple[int, bytes]:
    parts_sent = (body[n : n + 50_000] for n in range(0, len(body), 50_000))
    with requests.Session() as session, session.post(url, data=parts_sent, timeout=30) as answer:
        return answer.status_code, answer.content


def by_httpx(url: str, body: bytes) -> tuple[int, bytes]:
    answer = httpx2.post(url, content=body, timeout=30)
    return answer.status_code, answer.content


@pytest.mark.parametrize("size", [LIMIT + 1, 5 * LIMIT, 40 * LIMIT])
@pytest.mark.parametrize("post", [by_urllib, by_requests, by_pieces, by_httpx])
def test_a_client_reads_that_its_body_is_too_long(
    composed_home, open_live, size: int, post: Callable[[str, bytes], tuple[int, bytes]]
) -> None:
    with running(open_live(composed_home)) as (url, _):
        status, content = post(url + INFER, b"a" * size)
        assert status == 413
        assert json.loads(content) == {"error": f"the body has more than {LIMIT} bytes"}
        assert post(url + INFER, BODY)[0] == 200


def test_a_body_that_never_ends_is_drained_within_bounds(composed_home, open_live) -> None:
    options = Options(body=2**16, seconds=1.0)
    with running(open_live(composed_home), options=options) as (url, _):
        for pause in (0.0, 0.05):  # so many bytes, or so many seconds
            connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
            connection.putrequest("POST", INFER)
            connection.putheader("Content-Length", str(2**40))
            connection.endheaders()
            start, sent = time.monotonic(), 0
            with pytest.raises(OSError):
                while time.monotonic() < start + 20:
                    connection.send(b"a" * 2**16)
                    sent += 2**16
                    time.sleep(pause)
            assert sent < 16 << 20 and time.monotonic() - start < 5
            connection.close()


def sent(url: str, body: bytes, encoding: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
    connection.request("POST", INFER, body, {"Content-Encoding": encoding})
    answer = connection.getresponse()
    content = json.loads(answer.read())
    connection.close()
    return answer.status, content


@pytest.mark.parametrize("encoding", ["gzip", "x-gzip", "GZip", "identity", ""])
def test_a_gzip_body_is_answered_like_its_content(shared, encoding) -> None:
    with Client(shared) as client:
        expected = client.post(INFER, BODY).body
    body = gzip.compress(BODY) if "gzip" in encoding.lower() else BODY
    assert sent(shared, body, encoding) == (200, expected)
    if "gzip" in encoding:
        halves = gzip.compress(BODY[:20]) + gzip.compress(BODY[20:])
        assert sent(shared, halves, encoding) == (200, expected)


@pytest.mark.parametrize("encoding", ["br", "deflate", "zstd", "gzip, gzip", "compress", "é"])
def test_another_encoding_is_415(shared, encoding) -> None:
    status, content = sent(shared, zlib.compress(BODY), encoding)
    assert status == 415 and content == {"error": "the body's encoding is not gzip, or none"}


BROKEN = {
    "no gzip": BODY,
    "cut short": gzip.compress(BODY)[:-1],
    "another sum": gzip.compress(BODY)[:-8] + b"\x00" * 8,
    "garbage after": gzip.compress(BODY) + b"garbage",
    "zlib": zlib.compress(BODY),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_no_gzip_is_400(shared, name) -> None:
    status, content = sent(shared, BROKEN[name], "gzip")
    assert status == 400 and "gzip" in content["error"]


def test_a_bomb_is_413_and_is_not_decoded(shared) -> None:
    member = gzip.compress(b" " * (64 << 20), 9)
    for bomb in (member, gzip.compress(b" " * (LIMIT // 2)) * 1000, gzip.compress(b"") * 40_000):
        start = time.process_time()  # the server is a thread here; what else runs does not count
        status, content = sent(shared, bomb[:LIMIT], "gzip")
        assert status in {400, 413} and len(bomb) < 3 * LIMIT, content
        assert time.process_time() - start < 2
    assert sent(shared, member, "gzip")[0] == 413
