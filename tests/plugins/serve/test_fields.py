"""Fields that a route does not know, or that are out of range: 400, and the error says which."""

from __future__ import annotations

import re
from typing import Any

import pytest
from redhost_serve.client import Client

TEXT = "What is 37 plus 12?"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": TEXT}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": TEXT}]}),
        ("/v1/embeddings", {"input": TEXT}),
        ("/classify", {"input": TEXT}),
        ("/v1/route", {"texts": [TEXT]}),
        ("/v1/generate", {"prompt": TEXT}),
    ],
)
def test_an_unknown_one_is_named(shared, path, body) -> None:
    model = {} if path in {"/v1/route", "/v1/generate"} else {"model": "auto"}
    with Client(shared) as client:
        reply = client.post(path, {**model, **body, "foo": 1})
    assert reply.status == 400 and "foo" in str(reply.body["error"])


@pytest.mark.parametrize(
    ("fields", "numbers"),
    [
        ({"logprobs": 5}, {"1", "5"}),
        ({"n": 99}, {"16", "99"}),
        ({"prompt": ["a"] * 65}, {"64", "65"}),
        ({"seed": -7}, {"0", "7"}),
    ],
)
def test_a_number_out_of_range_is_named_with_the_limit(
    shared, fields: dict[str, Any], numbers: set[str]
) -> None:
    with Client(shared) as client:
        reply = client.post("/v1/completions", {"model": "auto", "prompt": TEXT, **fields})
    assert reply.status == 400
    assert numbers <= set(re.findall("[0-9]+", reply.body["error"]["message"]))


def test_what_msgspec_cannot_find_again_is_no_failure(shared) -> None:
    with Client(shared) as client:
        for text in (b'{"texts": ["a", 3], "texts": []}', b'{"texts": [1' + b"0" * 5000 + b"]}"):
            assert client.post("/v1/route", text).status == 400
