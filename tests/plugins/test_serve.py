"""The server, for real: uvicorn on a port, clients on sockets, generations that change."""

from __future__ import annotations

import asyncio
import http.client
import json
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from redhost_serve.batcher import Batcher, FullError
from redhost_serve.client import INFER, Client
from redhost_serve.server import running
from redhost_serve.service import Options
from redhost_serve.storm import (
    Log,
    broken_swaps,
    clients,
    golden_answers,
    storm,
    telling_texts,
)

import redhost

TOKEN = "a token that nobody guesses"
TEXT = "What is 37 plus 12?"


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def composed_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Generations 1, 2 and 3 of the shipped experts; copy it before changing it."""
    home = tmp_path_factory.mktemp("served") / "home"
    host = redhost.Host.open(home, backbone="tiny", plugins=redhost.Plugins(()))
    for router in ("evidence", "centroid", "statistics"):
        host.recompose(router=router, accept=True)
    return home


@pytest.fixture
def home(composed_home: Path, tmp_path: Path) -> Path:
    home = tmp_path / "home"
    shutil.copytree(composed_home, home)
    return home


def open_live(home: Path, kind: type[redhost.Live] = redhost.Live) -> redhost.Live:
    return kind.open(home, backbone="tiny", plugins=redhost.Plugins(()))


@pytest.fixture(scope="module")
def shared(composed_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server that tests may ask but not change."""
    home = tmp_path_factory.mktemp("shared") / "home"
    shutil.copytree(composed_home, home)
    with running(open_live(home), options=Options(seconds=1.0)) as (url, _):
        yield url


# -- the routes -----------------------------------------------------------------------------------


def test_health_and_metadata(shared) -> None:
    with Client(shared) as client:
        assert client.get("/v2/health/live").body == {"live": True}
        assert client.get("/v2/health/ready").body == {"ready": True}
        assert client.get("/v2/models/redhost/ready").body == {"ready": True}
        assert client.get("/v2").body["extensions"] == ["model_repository", "metrics"]
        model = client.get("/v2/models/redhost").body
        assert model["versions"] == ["3"]
        assert [t["name"] for t in model["outputs"]] == ["label", "probability", "weights"]
        assert client.get("/v2/models/other").status == 404


def test_infer_answers_as_the_host_does_and_names_its_generation(shared, composed_home) -> None:
    with Client(shared) as client:
        reply = client.infer([TEXT])
    [answer] = redhost.Host.open(composed_home, plugins=redhost.Plugins(())).predict([TEXT])
    assert (reply.status, reply.generation) == (200, answer.generation)
    assert reply.output("label") == [answer.label] == ["49"]
    assert reply.output("probability") == [answer.probability]  # the very same bits
    assert reply.output("weights") == list(answer.weights.values())


def infer(tensor: dict[str, Any], **more: Any) -> dict[str, Any]:
    plain = {"name": "text", "datatype": "BYTES", "shape": [1], "data": [TEXT]}
    return {"inputs": [{**plain, **tensor}], **more}


def test_infer_reads_nested_data_and_returns_what_is_wanted(shared) -> None:
    told = infer(
        {"shape": [2, 1], "data": [[TEXT], [TEXT]]}, id="mine", outputs=[{"name": "label"}]
    )
    with Client(shared) as client:
        body = client.post(INFER, told).body
        assert client.post(INFER, infer({}, outputs=[{"name": "value"}])).status == 400
    assert (body["id"], [o["name"] for o in body["outputs"]]) == ("mine", ["label"])
    assert body["outputs"][0]["data"] == ["49", "49"]


def test_the_listing_shows_experts_generations_and_accuracy(shared) -> None:
    with Client(shared) as client:
        [model] = client.get("/v1/models").body["data"]
        generations = client.get("/v1/generations").body["data"]
        index = client.post("/v2/repository/index", {}).body
    experts = {x["id"]: x for x in model["experts"]}
    assert (model["generation"], model["parent"], model["admin"]) == (3, 2, False)
    assert experts["range1"]["state"] == "attached" and experts["range1"]["serving"]
    assert [g["number"] for g in generations] == [3, 2, 1]
    assert set(generations[0]["accuracy"]) == set(generations[0]["experts"])
    assert [x["state"] for x in index] == ["UNAVAILABLE", "UNAVAILABLE", "READY"]


def test_metrics_count_requests_and_name_the_generation(shared) -> None:
    with Client(shared) as client:
        client.infer([TEXT])
        text = client.get("/metrics").body.decode()
    assert f'redhost_requests_total{{route="{INFER.replace("redhost", "{name}", 1)}"' in text
    assert "redhost_generation 3.0" in text and "redhost_generations_alive 1.0" in text


def test_the_page_asks_nobody_else(shared) -> None:
    for path in ("/", "/static/page.css", "/static/page.js"):
        connection = http.client.HTTPConnection(shared.removeprefix("http://"))
        connection.request("GET", path)
        answer = connection.getresponse()
        assert answer.status == 200 and b"://" not in answer.read().replace(
            b"http://www.w3.org", b""
        )
        assert "default-src 'self'" in (answer.getheader("Content-Security-Policy") or "")
        connection.close()


# -- what is wrong is 4xx, and changes nothing ----------------------------------------------------

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


@pytest.mark.parametrize("name", NASTY)
def test_a_nasty_body_is_400_and_changes_nothing(shared, name) -> None:
    with Client(shared) as client:
        before = client.infer([TEXT]).body
        reply = client.post(INFER, NASTY[name])
        assert reply.status == 400 and set(reply.body) == {"error"}
        assert client.infer([TEXT]).body == before


def test_nasty_bodies_do_break_a_handler_that_repeats_its_input() -> None:
    """The twin: FastAPI as it comes answers some of these with 500."""
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


HEAD = f"POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n".encode()


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def test_a_body_over_the_limit_is_413_before_it_is_sent(shared) -> None:
    assert status(raw(shared, HEAD + b"Content-Length: 104857600\r\n\r\n")) == 413
    assert status(raw(shared, HEAD + b"Content-Length: " + b"9" * 400 + b"\r\n\r\n")) in {400, 413}


def test_a_body_without_a_length_is_413_at_the_first_byte_too_many(shared) -> None:
    chunk = b"10000\r\n" + b"a" * 0x10000 + b"\r\n"
    assert status(raw(shared, HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * 17)) == 413


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


# -- the queue ------------------------------------------------------------------------------------


class Slow(redhost.Live):
    """A live host that answers when it is told to."""

    go_on = threading.Event()

    def predict(self, texts):
        assert self.go_on.wait(30)
        return super().predict(texts)


def test_a_full_queue_is_503_and_says_when_to_come_back(home) -> None:
    Slow.go_on.clear()
    with (
        running(open_live(home, Slow), options=Options(queue=2)) as (url, service),
        ThreadPoolExecutor(8) as pool,
    ):

        def ask(_: int) -> int:
            with Client(url) as client:
                return client.infer([TEXT]).status

        jobs = [pool.submit(ask, n) for n in range(1)]
        until(lambda: service.metrics.batch.collect()[0].samples[-2].value >= 1)
        jobs += [pool.submit(ask, n) for n in range(2)]
        until(lambda: len(service.batcher) == 2)
        connection = http.client.HTTPConnection(url.removeprefix("http://"))
        connection.request("POST", INFER, json.dumps(infer({})))
        answer = connection.getresponse()
        assert (answer.status, answer.getheader("Retry-After")) == (503, "1")
        connection.close()
        Slow.go_on.set()
        assert [j.result() for j in jobs] == [200] * 3


def until(true: Any) -> None:
    """Wait for a condition."""
    for _ in range(3000):
        if true():
            return
        time.sleep(0.01)
    raise AssertionError("it did not happen")


def test_what_waits_together_is_answered_together_and_never_split() -> None:
    seen: list[int] = []
    go_on = threading.Event()

    def predict(texts):
        assert go_on.wait(30)
        seen.append(len(texts))
        return [
            redhost.Answer(input=t, label=t, probability=1, weights={}, generation=1) for t in texts
        ]

    async def ask() -> list[list[str]]:
        batcher = Batcher(predict, queue=99, texts=8)
        jobs = [asyncio.create_task(batcher.ask([f"{n}.{i}" for i in range(3)])) for n in range(6)]
        await asyncio.sleep(0.1)
        go_on.set()
        found = [[a.label for a in await job] for job in jobs]
        batcher.close()
        with pytest.raises(FullError):
            await batcher.ask(["late"])
        return found

    assert asyncio.run(ask()) == [[f"{n}.{i}" for i in range(3)] for n in range(6)]
    assert all(n in {3, 6} for n in seen) and 6 in seen


def test_a_request_that_cannot_be_answered_spoils_no_other() -> None:
    def predict(texts):
        if "bad" in texts:
            raise redhost.UsageError("a text has no tokens")
        return [
            redhost.Answer(input=t, label=t, probability=1, weights={}, generation=1) for t in texts
        ]

    async def ask() -> list[object]:
        batcher = Batcher(predict, queue=9, texts=8, wait=0.1)
        jobs = [batcher.ask([text]) for text in ("one", "bad", "two")]
        found = await asyncio.gather(*jobs, return_exceptions=True)
        batcher.close()
        return found

    one, bad, two = asyncio.run(ask())
    assert (one[0].label, two[0].label) == ("one", "two") and isinstance(bad, redhost.UsageError)


# -- changing what is served ----------------------------------------------------------------------


def test_swap_and_rollback(home) -> None:
    with running(open_live(home), token=TOKEN) as (url, _), Client(url, token=TOKEN) as client:
        assert client.swap(1, expected=3).body == {"generation": 1, "previous": 3}
        assert client.infer([TEXT]).generation == 1
        assert client.swap(3, expected=3).status == 412
        assert client.swap(2).body["generation"] == 2
        assert client.post("/admin/rollback", {"expected_generation": 2}).body["generation"] == 1
        assert client.post("/admin/rollback", {}).status == 422
        assert client.swap(77).status == 404
        assert client.post("/admin/swap", b"{").status == 400
        assert client.post("/admin/swap", {"generation": -1}).status == 400
        text = client.get("/metrics").body.decode()
    assert 'redhost_swaps_total{outcome="done"} 3.0' in text


def test_a_broken_generation_is_422_with_the_reason_and_the_old_one_answers(home) -> None:
    (home / "generations/1/router.safetensors").write_bytes(b"broken")
    with running(open_live(home), token=TOKEN) as (url, _), Client(url, token=TOKEN) as client:
        reply = client.swap(1)
        assert reply.status == 422 and "generation 1 is damaged" in reply.body["error"]
        assert client.infer([TEXT]).generation == 3


def test_a_concurrent_swap_is_409(home) -> None:
    live = open_live(home)
    with running(live, token=TOKEN) as (url, _), Client(url, token=TOKEN) as client:
        assert live._turn.acquire(timeout=5)  # as a swap that is under way
        assert client.swap(1).status == 409
        live._turn.release()
        assert client.swap(1).status == 200


def test_unload_and_load_as_triton_does(home) -> None:
    path = "/v2/repository/models/redhost"
    with running(open_live(home), token=TOKEN) as (url, _), Client(url, token=TOKEN) as client:
        assert client.post(f"{path}/unload", {}).body == {"generation": None, "previous": 3}
        assert client.get("/v2/health/ready").status == 503
        assert client.infer([TEXT]).status == 503
        assert client.get("/v2/health/live").status == 200
        assert client.get("/v1/models").body["data"][0]["generation"] is None
        told = {"parameters": {"generation": 2}}
        assert client.post(f"{path}/load", told).body == {"generation": 2, "previous": None}
        assert client.post("/v2/repository/models/other/load", {}).status == 404
        assert client.infer([TEXT]).generation == 2


ADMIN = ("/admin/swap", "/admin/rollback", "/v2/repository/models/redhost/load")


@pytest.mark.parametrize("path", ADMIN)
def test_without_a_token_nobody_may_change_anything(shared, home, path) -> None:
    with Client(shared, token=TOKEN) as client:
        assert client.post(path, {}).status == 404
    with running(open_live(home), token=TOKEN) as (url, service):
        for wrong in (None, "", "wrong", TOKEN + "x", TOKEN[:-1], "\xe9" * 20):
            with Client(url, token=wrong) as client:
                assert client.post(path, {}).status == 401
        assert service.live.generation == 3


@pytest.mark.parametrize(
    ("address", "allowed"),
    [
        *((address, True) for address in ("127.0.0.1", "::1", "::ffff:127.0.0.1")),
        *((address, False) for address in ("10.0.0.7", "::ffff:10.0.0.7", "localhost", "")),
    ],
)
def test_changes_come_from_this_machine_only(address, allowed) -> None:
    from redhost_serve.admin import check
    from redhost_serve.problems import Problem
    from starlette.requests import Request

    headers = [(b"authorization", f"Bearer {TOKEN}".encode())]
    request = Request({"type": "http", "headers": headers, "client": (address, 1)})
    if allowed:
        check(request, TOKEN)
        return
    with pytest.raises(Problem) as e:
        check(request, TOKEN)
    assert e.value.status == 403


def test_a_token_is_a_secret_or_none(tmp_path) -> None:
    from redhost_serve.admin import read_token

    path = tmp_path / "token"
    for content, mode, reason in (
        (TOKEN, 0o644, "others can read"),
        ("short", 0o600, "too short"),
        ("", 0o600, "too short"),
    ):
        path.write_text(content)
        path.chmod(mode)
        with pytest.raises(redhost.SettingsError, match=reason):
            read_token(path)
    path.write_text(f"{TOKEN}\n")
    assert read_token(path) == TOKEN
    with pytest.raises(redhost.SettingsError, match="cannot read the token"):
        read_token(tmp_path / "none")


def test_draining_is_not_ready_but_alive_and_answers(home) -> None:
    with running(open_live(home)) as (url, service), Client(url) as client:
        service.draining = True
        assert client.get("/v2/health/ready").status == 503
        assert client.get("/v2/health/live").status == 200
        assert client.infer([TEXT]).status == 200


# -- the storm ------------------------------------------------------------------------------------


class InPlace(redhost.Live):
    """The twin of the pointer: the parts of what is served are replaced one after the other."""

    def _move(self, composed: redhost.Composed) -> None:
        serving = self._serving
        if serving is None:
            super()._move(composed)
            return
        object.__setattr__(serving, "bus", composed.bus)
        time.sleep(0.05)  # as long as copying weights of a real size takes
        object.__setattr__(serving, "generation", composed.generation)


def blow(home: Path, kind: type[redhost.Live], *, swaps: int) -> tuple[Any, int, list[int], Any]:
    """Return what clients saw, how many answers were stale, the broken swaps' statuses."""
    texts = telling_texts(redhost.Host.open(home, plugins=redhost.Plugins(())), (1, 2), 4)
    with running(open_live(home), token=TOKEN) as (url, _):
        golden = golden_answers(url, (1, 2), texts, token=TOKEN)
    with running(open_live(home, kind), token=TOKEN) as (url, service):
        log = Log(service.live.generation)
        with Client(url, token=TOKEN) as client, clients(url, 4, golden) as tally:
            broken = broken_swaps(home, 3)
            refused = storm(client, log, good=(1, 2), broken=broken, swaps=swaps, seconds=1)
        return tally, tally.stale(log), refused, service.live


def test_a_storm_of_swaps_fails_no_request_mixes_none_and_serves_none_stale(home) -> None:
    tally, stale, refused, live = blow(home, redhost.Live, swaps=30)
    assert (tally.failed, tally.mixed, stale) == ([], [], 0)
    assert sorted(set(refused)) == [404, 412, 422] and len(refused) == 10
    assert {g for _, _, g in tally.seen} == {1, 2}
    until(lambda: live.alive() == (live.generation,))


def test_the_same_storm_shows_a_swap_in_place(home) -> None:
    """The twin of the test above."""
    tally, stale, _, _ = blow(home, InPlace, swaps=30)
    assert tally.mixed or stale


def test_the_log_knows_which_generations_may_answer() -> None:
    log = Log(1)
    log.add(began=10, ended=11, generation=2)
    log.add(began=20, ended=21, generation=1)
    assert log.allowed(1, 2) == {1}
    assert log.allowed(9, 10.5) == {1, 2}
    assert log.allowed(12, 13) == {2}
    assert log.allowed(12, 20.5) == {1, 2}
    assert log.allowed(22, 23) == {1}
