"""What passes, what is chosen, and what a client sees when something fails."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import socket
import socketserver
import subprocess
from contextlib import closing
from http.client import HTTPConnection
from threading import Thread
from typing import Any

import httpx2
import openai
import pytest
from redhost_gateway import upstream as upstream_module
from redhost_gateway.app import create_app
from redhost_gateway.faulty_upstream import BASE, TOKENS, FaultyUpstream
from redhost_gateway.gateway import Gateway

import redhost

TEXT = "What is 37 plus 12?"
EXPERTS = {"What is 8 plus 9?": "range1", TEXT: "range3", "What is 50 plus 49?": "range5"}


def client_of(url: str, **options: Any) -> openai.OpenAI:
    return openai.OpenAI(**{"base_url": f"{url}/v1", "api_key": "key", "max_retries": 0, **options})


def chat(text: str, **fields: Any) -> dict[str, Any]:
    return {"model": "auto", "messages": [{"role": "user", "content": text}], **fields}


def post(url: str, body: Any, path: str = "/v1/chat/completions", **headers: str) -> Any:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return httpx2.post(url + path, content=content, headers=headers, timeout=30)


def test_the_official_client_gets_the_expert_that_route_names(
    composed_home, upstream, gateway_of
) -> None:
    upstream[1].adapters["range1"] = "weights"
    url, _ = gateway_of(composed_home, upstream[0])
    host = redhost.Host.open(composed_home, plugins=redhost.plugins.Plugins(()))
    routes = host.route(list(EXPERTS))
    assert [r.expert for r in routes] == list(EXPERTS.values())
    with client_of(url) as client:
        for route in routes:
            raw = client.chat.completions.with_raw_response.create(**chat(route.input, user="me"))
            assert raw.parse().model == route.expert == raw.headers["x-redhost-expert"]
            assert raw.parse().choices[0].message.content == "me"
            weights = dict(x.split("=") for x in raw.headers["x-redhost-weights"].split(","))
            assert float(weights[route.expert]) == pytest.approx(
                route.weights[route.expert], abs=1e-4
            )
            assert raw.headers["x-redhost-generation"] == "3"
            assert raw.headers["x-redhost-declined"] == "false"
            assert client.completions.create(model="auto", prompt=route.input).model == route.expert
            assert client.embeddings.create(model="auto", input=route.input).model == route.expert
            with client.chat.completions.create(**chat(route.input, user="x", stream=True)) as got:
                assert "".join(c.choices[0].delta.content or "" for c in got) == "x " * TOKENS
        ids = [model.id for model in client.models.list()]
        assert ids == ["auto", "range1", "backbone", BASE]  # range3 has no adapter there
        assert [client.models.retrieve(name).id for name in ids] == ids
        with pytest.raises(openai.NotFoundError, match="GET /v1/models"):
            client.models.retrieve("range3")
        declined = client.chat.completions.with_raw_response.create(**chat("zebra"))
        assert declined.headers["x-redhost-declined"] == "true"
        assert declined.parse().model == BASE


def test_a_body_passes_byte_for_byte_but_for_its_model(composed_home, upstream, gateway_of) -> None:
    url, _ = gateway_of(composed_home, upstream[0], models={"range3": "third"})
    state = upstream[1]
    named = (
        b'{"model":"own",  "temperature":1.0000000000000000001,"user":"u","x":{"b":1,"a":1e400}}'
    )
    post(url, named, authorization="Bearer s3cret", **{"x-own": "yes"})
    path, headers, body = state.seen[-1]
    assert body == named and path == "/v1/chat/completions"
    assert (headers["authorization"], headers["x-own"]) == ("Bearer s3cret", "yes")
    tools = b'[{"type": "function",  "function": {"name": "f", "n": 1.10}}]'
    parts = json.dumps(
        [{"type": "image_url", "image_url": {"url": "data:,"}}, {"type": "text", "text": TEXT}]
    )
    chosen = b'{"model":"auto","tools":%s,"messages":[{"role":"user","content":%s}]}'
    answer = post(url, chosen % (tools, parts.encode()))
    assert answer.json()["model"] == "third" and answer.headers["x-redhost-expert"] == "range3"
    body = state.seen[-1][2]
    assert tools in body and parts.encode() in body and b'"model":"third"' in body
    assert post(url, {"model": "range3"}).json()["model"] == "third"  # named by its id
    marked = b'\xef\xbb\xbf{"model":"auto","prompt":%s}' % json.dumps(TEXT).encode()
    assert post(url, marked, path="/v1/completions").json()["model"] == "third"
    post(url, b"no json", path="/v1/chat/completions?a=%2F")
    assert state.seen[-1][0].endswith("?a=%2F") and state.seen[-1][2] == b"no json"


@pytest.mark.parametrize(
    ("body", "refused"),
    [
        (b'{"model":"auto","prompt":"x","model":"own"}', True),
        (b'{"model":"own","prompt":"x","model":"auto"}', True),
        (b'{"model":"own","prompt":"x","mod\\u0065l":"auto"}', True),
        (b'{"\\u006Dodel":"own","model":"own"}', True),
        (b'{"model":"own","tools":[{"model":"a"},{"model":"b","model":"c"}]}', False),
        (b'{"tools":{"model":"a","model":"b"},"model":"own"}', False),
        (b'{"model":"own","prompt":"\\"model\\" and \\u0065"}', False),
    ],
)
def test_of_two_models_in_a_body_none_is_chosen(
    composed_home, upstream, gateway_of, body, refused
) -> None:
    """The upstream may read the other one."""
    url, _ = gateway_of(composed_home, upstream[0])
    answer = post(url, body, path="/v1/completions")
    if refused:
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "duplicate_model")
        assert not upstream[1].seen
    else:
        assert answer.json()["model"] == "own" and upstream[1].seen[-1][2] == body


def test_a_body_that_the_gateway_cannot_read_is_refused_not_sent_on(
    composed_home, upstream, gateway_of
) -> None:
    url, _ = gateway_of(composed_home, upstream[0])
    packed = gzip.compress(json.dumps(chat(TEXT)).encode())
    answer = post(url, packed, **{"content-encoding": "gzip"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (415, "encoded_body")
    assert not upstream[1].seen
    assert post(url, chat(TEXT), **{"content-encoding": "identity"}).status_code == 200


def test_the_upstreams_own_errors_pass(composed_home, upstream, gateway_of) -> None:
    url, _ = gateway_of(composed_home, upstream[0])
    with client_of(url) as client:
        for code, kind in {
            429: openai.RateLimitError,
            500: openai.InternalServerError,
            400: openai.BadRequestError,
        }.items():
            with pytest.raises(kind) as refused:
                client.chat.completions.create(
                    **chat(TEXT, user="mine", extra_body={"behave": f"status:{code}"})
                )
            assert refused.value.body == {"message": "mine", "code": "status"}


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"model": "auto"}, 400, "no_text"),
        ({"model": "auto", "messages": [{"role": "system", "content": "x"}]}, 400, "no_text"),
        ({"model": "auto", "prompt": [1, 2]}, 400, "no_text"),
        (b'{"model": "auto", "prompt": "a\xff"}', 400, "invalid_utf8"),
        ({"model": "auto", "prompt": list(EXPERTS)}, 400, "several_experts"),
        ({"model": "auto", "prompt": TEXT, "behave": "drop"}, 502, "upstream_unreachable"),
        ({"model": "auto", "prompt": TEXT, "behave": "slow:9"}, 504, "upstream_timeout"),
        ({"model": "x" * 300, "prompt": TEXT}, 413, "body_too_long"),
    ],
)
def test_what_the_gateway_refuses(body, status, code, composed_home, upstream, gateway_of) -> None:
    url, _ = gateway_of(composed_home, upstream[0], limits={"read": 0.3, "body": 290})
    answer = post(url, body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    named = {k: v for k, v in answer.headers.items() if k.startswith("x-redhost-")}
    assert named.get("x-redhost-expert") == ("range3" if status in {502, 504} else None)
    assert named == {} or {"x-redhost-generation", "x-redhost-weights"} < named.keys()
    where = upstream[0].removeprefix("http://")
    assert (where in answer.json()["error"]["message"]) == (status == 502)
    with client_of(url) as client:  # it goes on
        assert client.completions.create(model="auto", prompt=TEXT).model == "range3"


def test_an_upstream_that_is_gone_is_named_without_its_password(composed_home, gateway_of) -> None:
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{free.getsockname()[1]}"
    url, _ = gateway_of(composed_home, f"http://me:s3cret@{place}")
    answer = post(url, chat(TEXT))
    message = answer.json()["error"]["message"]
    assert answer.status_code == 502 and f"({place}: ConnectError)" in message
    assert "s3cret" not in answer.text and "--upstream" in message


def test_an_upstreams_password_is_sent_and_shown_nowhere(
    composed_home, upstream, gateway_of, caplog
) -> None:
    caplog.set_level("DEBUG")  # also what the client of HTTP logs
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        dead = f"127.0.0.1:{free.getsockname()[1]}"
    place, state = upstream[0].removeprefix("http://"), upstream[1]
    urls = [f"http://me:s3cr%40t@{place}", f"http://me:s3cr%40t@{dead}/v1"]
    url, gateway = gateway_of(composed_home, *urls)
    found = [post(url, chat(TEXT, behave=behave)) for behave in ("", "drop", "status:429")]
    assert found[0].status_code == 200
    token = base64.b64encode(b"me:s3cr@t").decode()
    assert state.seen[-1][1]["authorization"] == f"Basic {token}"
    with pytest.raises(httpx2.RemoteProtocolError):
        post(url, chat(TEXT, behave="break"))
    shown = [httpx2.get(url + path).text for path in ("/metrics", "/health/ready", "/v1/models")]
    assert f'upstream="http://{place}"' in shown[0] and f'"http://{dead}":false' in shown[1]
    shown += [f"{answer.text}{answer.headers}" for answer in found]
    shown += [caplog.text, repr(gateway.upstreams)]
    assert f"http://{dead} does not answer" in caplog.text and "HTTP Request" in caplog.text
    assert not [text for text in shown if "s3cr" in text or "me:" in text]


def test_where_the_client_names_the_expert_nothing_is_declined(
    composed_home, upstream, gateway_of
) -> None:
    url, _ = gateway_of(composed_home, upstream[0])
    answer = post(url, {"model": "range1", "prompt": TEXT}, "/v1/completions")
    assert (answer.status_code, answer.headers["x-redhost-expert"]) == (200, "range1")
    assert not {"x-redhost-declined", "x-redhost-weights"} & answer.headers.keys()


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:80", 200), ("LOCALHOST", 200), ("[::1]", 200), ("a.example.com", 200),
        ("evil.com", 400), ("[", 400), ("", 400),
    ],
)  # fmt: skip
def test_a_foreign_host_is_refused_as_an_object(composed_home, host, status) -> None:
    gateway = Gateway(host=redhost.Host.open(composed_home), settings=())
    app = create_app(gateway, hosts=("localhost", "::1", "*.example.com"))
    scope: dict[str, Any] = {"type": "http", "method": "GET", "path": "/health/live"}
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request"}

    asyncio.run(app({**scope, "headers": [(b"host", host.encode())]}, receive, send))
    assert sent[0]["status"] == status
    if status == 400:
        assert json.loads(sent[1]["body"])["error"]["code"] == "unknown_host"


def test_a_length_beside_chunks_does_not_cut_the_answer(composed_home, gateway_of) -> None:
    """As some servers answer; a length of its own is passed on, with its encoding."""
    chunked = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n"
    packed = gzip.compress(b"x" * 500)
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n"
    answers = {
        b"chunks": chunked + b"5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n",
        b"gzip": head % len(packed) + packed,
    }

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            path = self.rfile.readline().split()[1].rpartition(b"/")[2]
            while self.rfile.readline().strip():
                """Read all headers: closing a connection with unread bytes resets it."""
            self.wfile.write(answers.get(path, b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n"))

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url, _ = gateway_of(composed_home, f"http://127.0.0.1:{server.server_address[1]}")
        with closing(HTTPConnection(url.removeprefix("http://"), timeout=20)) as client:
            client.request("GET", "/v1/chunks")
            answer = client.getresponse()
            assert (answer.read(), answer.getheader("content-length")) == (b"hello world", None)
            client.request("GET", "/v1/gzip")
            answer = client.getresponse()
            assert (answer.read(), answer.getheader("content-encoding")) == (packed, "gzip")
        server.shutdown()


def test_what_changes_an_upstream_is_not_passed_on(composed_home, upstream, gateway_of) -> None:
    url, _ = gateway_of(composed_home, upstream[0])
    for path in ("load_lora_adapter", "%6Coad_lora_adapter", "unload_lora_adapter/"):
        answer = post(url, {"lora_name": "x", "lora_path": "/"}, path=f"/v1/{path}")
        assert answer.status_code == 403
    with closing(socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])))) as raw:
        raw.sendall(b"POST /v1/../load_lora_adapter HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert raw.recv(100).startswith(b"HTTP/1.1 400")
    assert httpx2.get(f"{url}/slots").status_code == 404
    assert not upstream[1].seen


def test_a_request_is_sent_again_before_the_first_byte_alone(
    composed_home, upstream, gateway_of
) -> None:
    url, gateway = gateway_of(composed_home, upstream[0])
    answer = post(url, chat(TEXT, user="again", behave="drop-first"))
    assert answer.json()["id"] == "again"
    seen = [json.loads(body)["user"] for _, _, body in upstream[1].seen]
    assert seen == ["again", "again"]
    with pytest.raises(httpx2.RemoteProtocolError):
        post(url, chat(TEXT, user="once", behave="break"))
    assert [json.loads(b)["user"] for _, _, b in upstream[1].seen].count("once") == 1
    with client_of(url) as client:
        events = client.chat.completions.create(
            **chat(TEXT, user="x", stream=True, extra_body={"behave": "break"})
        )
        got = ""
        with pytest.raises(openai.APIError, match="broke off"):
            for event in events:
                got += event.choices[0].delta.content or ""
        assert got == "x " * (TOKENS // 2)
    assert b'redhost_gateway_broken_total{upstream="' in gateway.metrics.text()


def test_another_upstream_answers_for_one_that_is_down(composed_home, upstream, gateway_of) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        dead = f"http://127.0.0.1:{unused.getsockname()[1]}"
    url, gateway = gateway_of(composed_home, dead, upstream[0])
    assert [u.healthy for u in gateway.upstreams] == [False, True]
    first = gateway.upstreams[0]
    first.healthy = first.reachable = True  # as if it had gone down this moment
    first.listed = ({"id": "range3"},)  # and were preferred
    assert post(url, chat(TEXT)).json()["model"] == "range3"
    assert httpx2.get(f"{url}/health/ready").json()["upstreams"] == {dead: False, upstream[0]: True}


def test_an_upstream_that_hangs_holds_up_no_check_of_another(
    composed_home, upstream, listening, gateway_of, until, monkeypatch
) -> None:
    monkeypatch.setattr(upstream_module, "CHECKING", 0.3)
    state = FaultyUpstream()
    state.hangs = True
    with listening(state) as hanging:
        url, gateway = gateway_of(composed_home, hanging, upstream[0])
        assert [u.healthy for u in gateway.upstreams] == [False, True]
        assert post(url, chat(TEXT)).json()["model"] == "range3" and not state.seen
        state.hangs = False
        until(lambda: gateway.upstreams[0].healthy)


def test_backpressure(composed_home, upstream, gateway_of, until) -> None:
    url, gateway = gateway_of(composed_home, upstream[0], limits={"requests": 1})
    waiting = subprocess.Popen(
        ["curl", "-s", f"{url}/v1/x", "-d", json.dumps(chat(TEXT, behave="slow:0.5"))],
        stdout=subprocess.PIPE,
    )
    until(lambda: gateway.in_progress == 1)
    answer = post(url, chat(TEXT))
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
    assert answer.json()["error"]["type"] == "rate_limit_error"
    assert json.loads(waiting.communicate()[0])["model"] == "range3"
    assert post(url, chat(TEXT)).status_code == 200


def test_a_client_that_goes_ends_the_request_upstream(
    composed_home, upstream, gateway_of, until
) -> None:
    url, gateway = gateway_of(composed_home, upstream[0])
    upstream[1].delay = 0.02
    with httpx2.stream("POST", f"{url}/v1/x", json=chat(TEXT, stream=True)) as answer:
        next(answer.iter_raw())
        assert upstream[1].open == 1
    until(lambda: upstream[1].open == 0 and gateway.in_progress == 0)
    assert gateway.serving.users == 0


def test_metrics(composed_home, upstream, gateway_of) -> None:
    url, _ = gateway_of(composed_home, upstream[0])
    for _ in range(3):
        post(url, chat(TEXT))
    text = httpx2.get(f"{url}/metrics").text
    assert 'redhost_gateway_expert_requests_total{expert="range3"} 3.0' in text
    assert f'redhost_gateway_requests_total{{status="200",upstream="{upstream[0]}"}} 3.0' in text
    assert "redhost_gateway_generation 3.0" in text
    assert f'redhost_gateway_up{{upstream="{upstream[0]}"}} 1.0' in text
