"""Text that a generating backbone goes on with, over HTTP: the host's, token for token."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from typing import Any

import pytest
import redhost_generate
from redhost_generate import batch, sessions
from redhost_serve.app import create_app
from redhost_serve.client import Client
from redhost_serve.server import running
from redhost_serve.service import Options, Service
from redhost_serve.wire import MAX_CHARACTERS, MAX_TOKENS

import redhost
from redhost.core.types import MAX_SEED

GENERATE = "/v1/generate"
PROMPT = "3 + 4 = "
REQUEST = {"prompt": PROMPT, "max_tokens": 12, "temperature": 0}
LONG = {**REQUEST, "max_tokens": 400}


@pytest.fixture
def serve(speaking) -> Callable[..., contextlib.AbstractContextManager[tuple[str, Service]]]:
    """Return what serves generation 1 while a block runs."""

    def call(live: redhost.Live | None = None, **options: Any) -> Any:
        live = live or redhost.Live(speaking.session)
        live.swap(1)
        return running(live, options=Options(**options))

    return call


def stream(url: str, request: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the name and value of each server-sent event as it comes."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
    with contextlib.closing(connection):
        connection.request("POST", GENERATE, json.dumps({**request, "stream": True}))
        answer = connection.getresponse()
        assert answer.status == 200
        assert (answer.getheader("Content-Type") or "").startswith("text/event-stream")
        while name := answer.readline().decode():
            data = answer.readline().decode()
            assert answer.readline() == b"\n"
            yield name.strip().removeprefix("event: "), json.loads(data.removeprefix("data: "))


@pytest.mark.parametrize("prompt", [PROMPT, "the cat sat ", "def f3(x):", ""])
@pytest.mark.parametrize("options", [{"temperature": 0}, {"temperature": 1.5, "seed": 7}])
def test_it_is_the_hosts_text_token_for_token_streamed_or_not(
    speaking, serve, prompt, options
) -> None:
    expected = [
        asdict(t)
        for t in redhost_generate.generate(speaking.load(1), prompt, max_tokens=12, **options)
    ]
    with serve() as (url, _), Client(url) as client:
        reply = client.post(GENERATE, {"prompt": prompt, "max_tokens": 12, **options})
        *tokens, end = stream(url, {"prompt": prompt, "max_tokens": 12, **options})
        [route] = client.post("/v1/route", {"texts": [prompt or " "]}).body["routes"]
    assert reply.status == 200 and len(expected) > 1
    assert reply.body["tokens"] == expected == [value for _, value in tokens]
    assert {name for name, _ in tokens} == {"token"}
    assert end == ("end", {**reply.body, "tokens": []})
    assert reply.body["generation"] == 1
    assert reply.body["text"] == "".join(t["text"] for t in expected)
    if prompt:
        assert reply.body["expert"] == route["expert"]
        assert reply.body["weights"] == pytest.approx(route["weights"])


def test_a_prompt_that_is_read_in_parts_is_continued_as_one_read_at_once(
    speaking, serve, monkeypatch
) -> None:
    request = {"prompt": PROMPT * 6, "max_tokens": 12, "temperature": 0}
    expected = [
        t.id
        for t in redhost_generate.generate(
            speaking.load(1), PROMPT * 6, max_tokens=12, temperature=0
        )
    ]
    for module in (batch, sessions):
        monkeypatch.setattr(module, "PASS_TOKENS", 7)
    with serve() as (url, _), Client(url) as client:
        assert [t["id"] for t in client.post(GENERATE, request).body["tokens"]] == expected
        *tokens, _ = stream(url, request)
    assert [value["id"] for _, value in tokens] == expected


SCHEMA = {"type": "array", "items": {"type": "integer"}, "maxItems": 3}


def test_text_of_a_schema_is_the_hosts_streamed_or_not(speaking, serve) -> None:
    request = {"prompt": PROMPT, "max_tokens": 60, "seed": 3, "json_schema": SCHEMA}
    model = speaking.load(1)
    grammar = redhost_generate.JsonGrammar(model, SCHEMA)
    text = "".join(
        t.text
        for t in redhost_generate.generate(model, PROMPT, max_tokens=60, seed=3, grammar=grammar)
    )
    assert grammar.finished and isinstance(json.loads(text), list)
    with serve() as (url, _), Client(url) as client:
        whole = client.post(GENERATE, request).body
        *_, (_, end) = stream(url, request)
        cut = client.post(GENERATE, {**request, "max_tokens": 1}).body
        *_, (_, cut_end) = stream(url, {**request, "max_tokens": 1})
        refused = client.post(GENERATE, {**request, "json_schema": {"type": "nothing"}})
    assert (whole["text"], whole["finish_reason"]) == (text, "stop")
    assert end == {**whole, "tokens": []}
    assert (cut["text"], cut["finish_reason"]) == (text[: len(cut["text"])], "length")
    assert cut_end == {**cut, "tokens": []}
    assert refused.status == 400 and "Invalid type" in refused.body["error"]


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"prompt": 3},
        {"prompt": "a" * (MAX_CHARACTERS + 1)},
        {"prompt": "a" * 600},  # more tokens than the model reads
        {"prompt": "a", "max_tokens": 0},
        {"prompt": "a", "max_tokens": MAX_TOKENS + 1},
        {"prompt": "a", "temperature": -1},
        {"prompt": "a", "temperature": "hot"},
        {"prompt": "a", "seed": -1},
        {"prompt": "a", "stream": 1},
        {"prompt": "a", "seed": MAX_SEED + 1},
        {"prompt": "a", "seed": 10**22},
        {"prompt": "a", "top_p": 0},
        {"prompt": "a", "foo": 1},
        {"prompt": "a", "top_k": -1},
        {"prompt": "a", "stop": ""},
        {"prompt": "a", "stop": ["b"] * 5},
    ],
)
def test_what_is_wrong_is_400_and_one_line_streamed_or_not(serve, wrong) -> None:
    with serve() as (url, _), Client(url) as client:
        for request in (wrong, {"stream": True, **wrong}):
            reply = client.post(GENERATE, request)
            assert reply.status == 400 and set(reply.body) == {"error"}
            assert "\n" not in reply.body["error"] and "aaaa" not in reply.body["error"]


@pytest.mark.parametrize(
    "options",
    [{"top_k": 2, "seed": MAX_SEED}, {"top_p": 0.5}, {"repetition_penalty": 9, "min_p": 0.1}],
)
def test_sampling_is_that_of_the_function(speaking, serve, options) -> None:
    limits = {k: v for k, v in options.items() if k != "seed"}
    expected = redhost_generate.generate(
        speaking.load(1),
        PROMPT,
        max_tokens=12,
        seed=options.get("seed", 0),
        expert="backbone",
        sampling=redhost_generate.Sampling(**limits),
    )
    request = {"prompt": PROMPT, "max_tokens": 12, "expert": "backbone", **options}
    with serve() as (url, _), Client(url) as client:
        reply = client.post(GENERATE, request)
        assert [t["id"] for t in reply.body["tokens"]] == [t.id for t in expected]
        assert reply.body["expert"] == "backbone"
        assert client.post(GENERATE, {**request, "expert": "nobody"}).status == 404


def test_a_stop_text_ends_it_and_no_character_of_it_is_shown(speaking, serve) -> None:
    made = list(redhost_generate.generate(speaking.load(1), PROMPT, max_tokens=30, temperature=0))
    whole, request = "".join(t.text for t in made), {**REQUEST, "max_tokens": 30}
    with serve() as (url, _), Client(url) as client:
        for first, length in ((4, 2), (5, 4), (0, 1)):
            stop = whole[first : first + length]
            stopped = {**request, "stop": ["\x00", stop]}
            reply = client.post(GENERATE, stopped).body
            assert (reply["text"], reply["finish_reason"]) == (whole.partition(stop)[0], "stop")
            *tokens, end = stream(url, stopped)
            assert [value for _, value in tokens] == reply["tokens"]
            assert "".join(value["text"] for _, value in tokens) == reply["text"]
            assert end == ("end", {**reply, "tokens": []}) and reply["expert"] is not None
        late = {**request, "stop": whole[-1] + "never", "max_tokens": len(made)}
        *tokens, _ = stream(url, late)
        assert "".join(value["text"] for _, value in tokens) == whole  # what was held back


def test_an_error_names_the_field_or_the_numbers(serve) -> None:
    with serve() as (url, _), Client(url) as client:
        unknown = client.post(GENERATE, {**REQUEST, "foo": 1}).body["error"]
        long = client.post(GENERATE, {**REQUEST, "prompt": "a" * 600}).body["error"]
        route = client.post("/v1/route", {"texts": [PROMPT], "foo": 1})
    assert "foo" in unknown and "512" in long and "601" in long
    assert route.status == 400 and "foo" in route.body["error"]


def test_a_body_over_the_limit_is_413(serve) -> None:
    with serve(body=100) as (url, _), Client(url) as client:
        assert client.post(GENERATE, {"prompt": "a" * 101}).status == 413
        assert client.post(GENERATE, REQUEST).status == 200


def test_the_backbone_decides_what_is_answered(serve, shared) -> None:
    tensor = {"name": "text", "datatype": "BYTES", "shape": [1], "data": [PROMPT]}
    with serve() as (url, _), Client(url) as client, Client(shared) as labels:
        refused = client.post("/v2/models/redhost/infer", {"inputs": [tensor]})
        assert refused.status == 400 and "next tokens" in refused.body["error"]
        assert client.get("/v2/models/redhost").body["outputs"] == []
        assert client.get("/v2/health/ready").status == 200
        refused = labels.post(GENERATE, REQUEST)
        assert refused.status == 400 and "does not generate" in refused.body["error"]


def test_each_text_ends_on_the_generation_it_began_with(speaking, serve) -> None:
    """Two at once, a swap in the middle: neither text is another than alone."""
    alone = {
        n: [*redhost_generate.generate(speaking.load(n), PROMPT, max_tokens=400, temperature=0)]
        for n in (1, 2)
    }
    assert [t.id for t in alone[1]] != [t.id for t in alone[2]]
    live = redhost.Live(speaking.session)
    with serve(live) as (url, service):
        texts = [stream(url, LONG) for _ in range(2)]
        begun = [[next(text) for _ in range(3)] for text in texts]
        with live.composed.backbone.trunk.lock:  # both wait for their next token
            live.swap(2)
            assert len(service.writer) == 2 and live.alive() == (1, 2)
        later = [*stream(url, LONG)]
        ended = [[*first, *text] for first, text in zip(begun, texts, strict=True)]
        for events, number in ((ended[0], 1), (ended[1], 1), (later, 2)):
            *tokens, (_, end) = events
            assert [t["id"] for _, t in tokens] == [t.id for t in alone[number]]
            assert end["generation"] == number
        assert live.alive() == (2,)


@contextlib.contextmanager
def passes_of(live: redhost.Live) -> Iterator[list[int]]:
    """Yield the list of tokens in every pass of the encoder that is served, one with wide heads."""
    trunk = live.composed.backbone.trunk
    trunk.tiles, model = replace(trunk.tiles, is_packed=True), trunk.model
    sizes, forward = [], model.forward
    model.forward = lambda *a, **k: sizes.append(k["input_ids"].shape[1]) or forward(*a, **k)
    try:
        yield sizes
    finally:
        del model.forward


def test_texts_at_once_share_passes(speaking, serve) -> None:
    """Each has the tokens that it has alone, and most tokens are read beside others."""
    live = redhost.Live(speaking.session)

    def ids(request: dict[str, Any]) -> list[int]:
        return [body["id"] for kind, body in stream(url, request) if kind == "token"]

    wanted = [LONG | {"prompt": prompt, "max_tokens": 60} for prompt in ("the ", "3 + ", "def ")]
    with serve(live) as (url, service):
        alone = [ids(one) for one in wanted]  # one at a time, so each is read alone
        with passes_of(live) as sizes, ThreadPoolExecutor(3) as pool:
            found = [*pool.map(ids, wanted)]
        assert found == alone and len(service.writer) == 0
    assert sizes.count(3) > 30


def test_with_batches_of_one_a_text_is_read_alone(speaking, serve) -> None:
    live = redhost.Live(speaking.session)
    request = LONG | {"max_tokens": 20}
    with serve(live, batch=1) as (url, _), passes_of(live) as sizes, ThreadPoolExecutor(3) as pool:
        texts = [*pool.map(lambda _: [*stream(url, request)], range(3))]
    assert texts[0] == texts[1] == texts[2]
    assert sizes.count(1) >= 57 and not {2, 3} & {*sizes}


def test_texts_at_once_come_along_token_by_token(serve) -> None:
    """One that came first does not keep the others waiting."""
    with serve() as (url, service):
        first, second = stream(url, LONG), stream(url, REQUEST)
        next(first)
        assert [name for name, _ in second][-1] == "end"
        assert len(service.writer) == 1
        assert [name for name, _ in first][-1] == "end"


def test_so_many_texts_may_be_under_way_and_one_more_is_503(serve, until) -> None:
    with serve(queue=1) as (url, service), Client(url) as client:
        text = stream(url, LONG)
        next(text)
        for request in (REQUEST, {**REQUEST, "stream": True}):
            reply = client.post(GENERATE, request)
            assert reply.status == 503 and "too many" in reply.body["error"]
        text.close()  # type: ignore[attr-defined]
        until(lambda: len(service.writer) == 0)
        assert client.post(GENERATE, REQUEST).status == 200


def test_a_client_that_hangs_up_ends_its_text(serve, until) -> None:
    for more in ({}, {"stream": True}):
        with serve() as (url, service):
            connection = http.client.HTTPConnection(url.removeprefix("http://"))
            connection.request("POST", GENERATE, json.dumps({**LONG, **more}))
            until(lambda service=service: len(service.writer) == 1)
            connection.close()
            until(lambda service=service: len(service.writer) == 0)
            text = service.metrics.text().decode()
            assert "redhost_queue_requests 0.0" in text


@pytest.mark.parametrize("path", [GENERATE, "/v1/completions"])
def test_a_stream_that_cannot_be_sent_ends_its_text(serve, until, monkeypatch, path) -> None:
    """No event is ever wanted then: what would make them has not begun, and ends nothing."""
    generate, begun = Service.generate, []

    async def remembered(*given: Any, **options: Any) -> Any:
        begun.append(await generate(*given, **options))  # so that no collector closes it
        return begun[-1]

    def without_clients(service: Service, **options: Any) -> Any:
        app = create_app(service, **options)

        async def call(scope: Any, receive: Any, send: Any) -> None:
            async def failing(message: Any) -> None:  # as servers of ASGI 2.4 tell who hung up
                if begun and message["type"] == "http.response.start":
                    raise OSError("gone")
                await send(message)

            given = scope if scope["type"] != "http" else {**scope, "asgi": {"spec_version": "2.4"}}
            await app(given, receive, failing)

        return call

    monkeypatch.setattr(Service, "generate", remembered)
    monkeypatch.setattr("redhost_serve.server.create_app", without_clients)
    with serve(queue=1) as (url, service), Client(url) as client:
        model = {} if path == GENERATE else {"model": "auto"}
        reply = client.post(path, {**model, **LONG, "stream": True})
        assert reply.status == 500 and len(begun) == 1
        until(lambda: len(service.writer) == 0)


FAILED = "the generation failed on this: RuntimeError"


def test_a_text_that_breaks_off_says_so_and_the_next_is_answered(speaking, serve) -> None:
    live = redhost.Live(speaking.session)
    with serve(live) as (url, service), Client(url) as client:
        trunk, steps = live.composed.backbone.trunk, 0

        def breaks(_: object, inputs: object) -> None:
            nonlocal steps
            steps += 1
            if steps % 5 == 0:  # the prompt is read twice; the fourth token breaks off
                raise RuntimeError("shapes of " + PROMPT)

        hook = trunk.model.register_forward_pre_hook(breaks)
        reply = client.post(GENERATE, REQUEST)
        assert (reply.status, reply.body) == (503, {"error": FAILED})
        events = [*stream(url, REQUEST)]
        assert [name for name, _ in events] == ["token"] * 3 + ["error"]
        assert events[-1][1] == reply.body and len(service.writer) == 0
        hook.remove()
        assert client.post(GENERATE, REQUEST).status == 200


def test_many_at_once_are_each_answered_as_alone(speaking, serve) -> None:
    prompts = [f"{n} + 4 = " for n in range(8)]
    model = speaking.load(1)
    alone = [
        [t.id for t in redhost_generate.generate(model, p, max_tokens=12, temperature=0)]
        for p in prompts
    ]
    with serve() as (url, _), ThreadPoolExecutor(8) as pool:

        def ask(prompt: str) -> list[int]:
            with Client(url) as client:
                body = client.post(GENERATE, {**REQUEST, "prompt": prompt}).body
            return [t["id"] for t in body["tokens"]]

        assert [*pool.map(ask, prompts)] == alone
