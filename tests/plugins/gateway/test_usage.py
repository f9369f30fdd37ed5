"""The choice in an answer's `usage`, and that nothing else of the answer changes."""

from __future__ import annotations

import gzip
import json
from typing import Any

import httpx2
import msgspec
import openai
import pytest
from redhost_gateway import usage
from redhost_gateway.faulty_upstream import TOKENS
from redhost_gateway.usage import editor_for, wants_usage

TEXT = "What is 37 plus 12?"
COUNTS = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
MESSAGES: Any = [{"role": "user", "content": TEXT}]
COUNTED: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
NOTE = {"expert": "a", "generation": 1}
JSON = {b"content-type": b"application/json"}
STREAM = {b"content-type": b"text/event-stream; charset=utf-8"}


def post(url: str, body: dict[str, Any], path: str = "chat/completions", **headers: str) -> Any:
    return httpx2.post(f"{url}/v1/{path}", json=body, headers=headers, timeout=30)


def test_the_official_client_reads_what_was_chosen(composed_home, upstream, gateway_of) -> None:
    url, _ = gateway_of(composed_home, upstream[0])
    with openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client:
        raw = client.chat.completions.with_raw_response.create(model="auto", messages=MESSAGES)
        noted = raw.parse().usage.redhost
        weights = dict(x.split("=") for x in raw.headers["x-redhost-weights"].split(","))
        assert noted == {
            "expert": raw.headers["x-redhost-expert"],
            "weight": float(weights["range3"]),
            "generation": int(raw.headers["x-redhost-generation"]),
            "declined": False,
        }
        assert raw.parse().usage.total_tokens == 3
        assert client.completions.create(model="auto", prompt=TEXT).usage.redhost == noted
        declined = client.completions.create(model="auto", prompt="zebra").usage.redhost
        assert (declined["expert"], declined["declined"]) == ("backbone", True)
        with client.chat.completions.create(model="auto", messages=MESSAGES, **COUNTED) as events:
            *most, last = events
        assert len(most) == TOKENS and last.usage.redhost == noted
        assert all(event.usage is None for event in most)


def test_all_else_passes_byte_for_byte(composed_home, upstream, gateway_of) -> None:
    url, _ = gateway_of(composed_home, upstream[0], models={"range3": "range3"})
    auto, named = {"model": "auto", "messages": MESSAGES}, {"model": "range3", "messages": MESSAGES}
    chosen, straight = (post(u, b).content for u, b in ((url, auto), (upstream[0], named)))
    assert post(url, named).content == straight  # an expert that the client named
    kind = dict[str, msgspec.Raw]
    found, expected = (msgspec.json.decode(x, type=kind) for x in (chosen, straight))
    added = msgspec.json.decode(found.pop("usage"), type=dict[str, Any])
    assert added.pop("redhost")["expert"] == "range3" and added == COUNTS
    del expected["usage"]
    assert {k: bytes(v) for k, v in found.items()} == {k: bytes(v) for k, v in expected.items()}
    for more in ({"stream": True}, {"stream": True, "stream_options": {"include_usage": False}}):
        assert post(url, {**auto, **more}).content == post(upstream[0], {**named, **more}).content
    counted, plain = (post(u, {**b, **COUNTED}) for u, b in ((url, auto), (upstream[0], named)))
    assert post(url, {**named, **COUNTED}).content == plain.content
    ours, theirs = counted.content.split(b"\n\n"), plain.content.split(b"\n\n")
    assert [a == b for a, b in zip(ours, theirs, strict=True)] == [
        *[True] * TOKENS,
        False,
        *[True] * 2,
    ]
    vectors = {"model": "auto", "input": TEXT}
    assert "redhost" not in post(url, vectors, "embeddings").json()["usage"]


def test_no_upstream_may_compress_such_an_answer(composed_home, upstream, gateway_of) -> None:
    url, _ = gateway_of(composed_home, upstream[0])
    for model, sent in (("auto", "identity"), ("own", "gzip")):
        post(url, {"model": model, "messages": MESSAGES}, **{"accept-encoding": "gzip"})
        assert upstream[1].seen[-1][1]["accept-encoding"] == sent
    assert editor_for({**JSON, b"content-encoding": b"gzip"}, NOTE) is None


def edited(kind: dict[bytes, bytes], data: bytes, size: int) -> bytes:
    editor = editor_for(kind, NOTE)
    parts = [editor.feed(data[n : n + size]) for n in range(0, len(data), size)]
    return b"".join([*parts, editor.end()])


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_only_an_object_usage_is_added_to(size) -> None:
    note = json.dumps(NOTE, separators=(",", ":")).encode()
    data = b'{"x":1e400,"s":"\\"usage\\"","usage":{"n": 1.0}}'
    assert (
        edited(JSON, data, size)
        == data[:-2].replace(b'"n": 1.0', b'"n":1.0') + b',"redhost":' + note + b"}}"
    )
    for same in (b'{"usage": null }', b"{}", b"no json", b'["usage"]', b'{"usage": 3}', b""):
        assert edited(JSON, same, size) == same
    for end in (b"\n", b"\r\n", b"\r"):
        event = b'data: {"usage":{}}' + end + b'data:{"usage":null }' + end + end
        event += b'data: "usage"' + end + b': {"usage":{}}' + end + b'data: {"usage":{}}'
        expected = event.replace(
            b'data: {"usage":{}}' + end, b'data: {"usage":{"redhost":' + note + b"}}" + end
        )
        assert edited(STREAM, event, size) == expected


def test_what_is_too_long_to_wait_for_passes(monkeypatch) -> None:
    monkeypatch.setattr(usage, "LONGEST", 50)
    for kind in (JSON, STREAM):
        editor, data = editor_for(kind, NOTE), b'data: {"usage":{}}' * 10
        parts = [editor.feed(data[n : n + 9]) for n in range(0, len(data), 9)]
        assert b"".join([*parts, editor.end()]) == data and any(parts)


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b"{}", True),
        (b'{"stream":null}', True),
        (b'{"stream":true}', False),
        (b'{"stream":true,"stream_options":null}', False),
        (b'{"stream":true,"stream_options":{"include_usage":true}}', True),
        (b'{"stream":"yes"}', False),
        (gzip.compress(b"{}"), False),
    ],
)
def test_which_answers_may_be_added_to(body, found) -> None:
    assert wants_usage(body) is found
