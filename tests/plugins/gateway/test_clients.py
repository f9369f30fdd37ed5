"""Other people's clients of OpenAI's API, each in the environments that have it."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from redhost_gateway.faulty_upstream import TOKENS

TEXT = "What is 37 plus 12?"
OTHER = "What is 8 plus 9?"
STREAMED = "me " * TOKENS
REFUSALS = {
    "status:429": openai.RateLimitError,
    "status:500": openai.InternalServerError,
    "drop": openai.InternalServerError,  # the gateway's own 502
}


@pytest.fixture
def options(composed_home, upstream, gateway_of) -> dict[str, Any]:
    """What LangChain's clients are made with."""
    url, _ = gateway_of(composed_home, upstream[0])
    base = {"base_url": f"{url}/v1", "api_key": "x", "model": "auto", "max_retries": 0}
    return {**base, "extra_body": {"user": "me"}}


def behaving(options: dict[str, Any], behave: str) -> dict[str, Any]:
    return {**options, "extra_body": {"user": "me", "behave": behave}}


def test_langchains_chat(options) -> None:
    chat_class = pytest.importorskip("langchain_openai").ChatOpenAI
    message = pytest.importorskip("langchain_core.messages").HumanMessage
    chat = chat_class(**options, include_response_headers=True)
    for text, expert in ((TEXT, "range3"), (OTHER, "range1")):
        answer = chat.invoke(text)
        assert (answer.content, answer.response_metadata["model_name"]) == ("me", expert)
        noted = answer.response_metadata["token_usage"]["redhost"]
        headers = answer.response_metadata["headers"]
        assert noted["expert"] == headers["x-redhost-expert"] == expert
        assert answer.usage_metadata["total_tokens"] == 3
    for counted in (False, True):
        chunks = [*chat_class(**options, stream_usage=counted).stream(TEXT)]
        assert "".join(chunk.content for chunk in chunks) == STREAMED
        counts = [c.usage_metadata["total_tokens"] for c in chunks if c.usage_metadata]
        assert counts == [3] * counted
    for behave, kind in REFUSALS.items():
        for ask in (lambda c: c.invoke(TEXT), lambda c: [*c.stream(TEXT)]):
            with pytest.raises(kind):
                ask(chat_class(**behaving(options, behave)))
    with pytest.raises(openai.APIError, match="broke off"):
        list(chat_class(**behaving(options, "break")).stream(TEXT))
    with pytest.warns(UserWarning, match="token usage"):  # it adds up what it does not know
        both = chat.generate([[message(TEXT)], [message(OTHER)]])
    assert [g.text for [g] in both.generations] == ["me"] * 2
    assert both.llm_output["token_usage"]["total_tokens"] == 6


def test_langchains_completions(options) -> None:
    model_class = pytest.importorskip("langchain_openai").OpenAI
    model = model_class(**options)
    assert model.invoke(TEXT) == "me"
    assert "".join(model.stream(TEXT)) == STREAMED
    made = model.generate([TEXT])
    assert made.llm_output["token_usage"]["total_tokens"] == 3
    for behave, kind in REFUSALS.items():
        with pytest.raises(kind):
            model_class(**behaving(options, behave)).invoke(TEXT)
    with pytest.raises(openai.BadRequestError, match="different experts"):
        model.generate([TEXT, OTHER])  # it sends both in one request


def test_llamaindex(composed_home, upstream, gateway_of) -> None:
    llama = pytest.importorskip("llama_index.llms.openai_like").OpenAILike
    url, _ = gateway_of(composed_home, upstream[0])

    def made(*, chat: bool = True, **fields: str) -> Any:
        more = {"extra_body": {"user": "me", **fields}}
        base = {"api_base": f"{url}/v1", "api_key": "x", "model": "auto", "max_retries": 0}
        return llama(**base, is_chat_model=chat, additional_kwargs=more)

    for chat in (True, False):
        answer = made(chat=chat).complete(TEXT)
        assert answer.text == "me" and answer.raw.model == "range3"
        assert answer.raw.usage.redhost["expert"] == "range3"
        streamed = [*made(chat=chat).stream_complete(TEXT)]
        assert "".join(chunk.delta or "" for chunk in streamed) == STREAMED == streamed[-1].text
        for behave, kind in REFUSALS.items():
            with pytest.raises(kind):
                made(chat=chat, behave=behave).complete(TEXT)
        with pytest.raises(openai.APIError, match="broke off"):
            list(made(chat=chat, behave="break").stream_complete(TEXT))
