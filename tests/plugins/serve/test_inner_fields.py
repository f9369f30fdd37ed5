"""Fields inside fields of OpenAI's requests: unknown ones are refused, as those outside are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import openai
import pytest
from redhost_serve.client import Client
from redhost_serve.server import running
from redhost_serve.service import Options

import redhost

PROMPT = "3 + 4 = "
SAME: dict[str, Any] = {"max_tokens": 12, "temperature": 0}
PAIR: dict[str, Any] = {
    "type": "object",
    "properties": {"n": {"type": "integer", "maximum": 99}, "ok": {"type": "boolean"}},
    "required": ["n", "ok"],
    "additionalProperties": False,
}
FORM: dict[str, Any] = {
    "type": "json_schema",
    "json_schema": {"name": "pair", "strict": True, "schema": PAIR},
}


@pytest.fixture(scope="module")
def url(speaking: redhost.Host) -> Iterator[str]:
    """A server that generates text; its backbone has a chat template."""
    live = redhost.Live(speaking.session)
    live.swap(1)
    tokenizer = live.composed.backbone.trunk.tokenizer
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    with running(live, options=Options()) as (url, _):
        yield url
    tokenizer.chat_template = None


MESSAGE = {"role": "user", "content": PROMPT}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"stream_options": {"include_usage": True, "foo": 1}}, "foo"),
        ({"stream_options": {"include_obfuscation": True}}, "include_obfuscation"),
        ({"messages": [{**MESSAGE, "weight": 0}]}, "weight"),
        ({"messages": [{**MESSAGE, "name": "me"}]}, "name"),
        ({"messages": [{**MESSAGE, "role": "assistant", "tool_calls": [{}]}]}, "tool_calls"),
        ({"messages": [{**MESSAGE, "content": [{"type": "text", "text": "a", "b": 1}]}]}, "b"),
        ({"response_format": {"type": "text", "foo": 1}}, "foo"),
        ({"response_format": {"type": "json_object", "schema": {}}}, "schema"),
        ({"response_format": {**FORM, "foo": 1}}, "foo"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": PAIR, "x": 1}}},
            "x",
        ),
    ],
)
def test_what_is_not_there_is_refused_inside_fields_too(url, fields, named) -> None:
    body = {"model": "auto", "messages": [MESSAGE], "stream": True, **SAME, **fields}
    with Client(url) as client:
        reply = client.post("/v1/chat/completions", body)
    message = reply.body["error"]["message"]
    assert reply.status == 400 and named in {*re.findall(r"[`'](\w+)[`']", message)}


def test_what_the_official_client_sends_inside_fields_is_taken(url) -> None:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as texts:
        create: Any = texts.chat.completions.create
        ask = partial(create, model="auto", max_tokens=60, temperature=0)
        made = ask(messages=[MESSAGE]).choices[0].message
        whole = made.model_dump()
        assert {"refusal", "annotations", "audio", "function_call", "tool_calls"} <= whole.keys()
        for former in (made, whole, {**whole, "content": None}):
            assert ask(messages=[MESSAGE, former, MESSAGE]).choices[0].message.content
        for options in ({}, {"include_usage": None}, {"include_obfuscation": False}):
            assert [*ask(messages=[MESSAGE], stream=True, stream_options=options)]
        described = {**FORM["json_schema"], "description": "of two"}
        form_ = {"type": "json_schema", "json_schema": described}
        assert ask(messages=[MESSAGE], response_format=form_).choices[0].message.content
