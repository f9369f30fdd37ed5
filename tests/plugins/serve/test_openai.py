"""The routes in the shape of OpenAI's API, read by the official client."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import jsonschema
import openai
import pytest
import redhost_generate
import torch
from redhost_serve.client import Client
from redhost_serve.completion import UntilStop
from redhost_serve.server import running
from redhost_serve.service import Options, Service

import redhost
from redhost.core.types import MAX_SEED

TEXT = "What is 37 plus 12?"
PROMPT = "3 + 4 = "
SAME: dict[str, Any] = {"max_tokens": 12, "temperature": 0}


def client_of(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def labels(shared: str) -> Iterator[openai.OpenAI]:
    """A client of a server that answers labels."""
    with client_of(shared) as client:
        yield client


@pytest.fixture(scope="module")
def live(speaking: redhost.Host) -> redhost.Live:
    """What generates text; its backbone has a chat template."""
    live = redhost.Live(speaking.session)
    live.swap(1)
    live.composed.backbone.trunk.tokenizer.chat_template = (
        "{% for m in messages %}{{ m['content'] }}{% endfor %}"
        "{% if messages[-1]['content'] == 'no' %}{{ raise_exception('no') }}{% endif %}"
    )
    return live


@pytest.fixture(scope="module")
def texts(live: redhost.Live) -> Iterator[openai.OpenAI]:
    """A client of a server that generates text."""
    with running(live, options=Options()) as (url, _), client_of(url) as client:
        yield client
    live.composed.backbone.trunk.tokenizer.chat_template = None


def expected(speaking: redhost.Host, prompt: str, **options: Any) -> list[redhost_generate.Token]:
    return list(redhost_generate.generate(speaking.load(1), prompt, **{**SAME, **options}))


# -- models ---------------------------------------------------------------------------------------


def test_experts_are_models_whose_parent_is_the_composition(labels) -> None:
    first, *experts, auto = labels.models.list().data
    assert labels.models.retrieve("auto") == auto and auto.id == "auto"
    assert first.id == "redhost" and first.created > 1_600_000_000
    assert [m.id for m in experts] == [f"range{n}" for n in range(1, 6)]
    assert {m.parent for m in (*experts, auto)} == {"redhost"}
    assert labels.models.retrieve("range3").id == "range3"
    with pytest.raises(openai.NotFoundError):
        labels.models.retrieve("range9")


def test_every_name_that_is_listed_generates(texts) -> None:
    names = [m.id for m in texts.models.list().data]
    assert {"redhost", "auto", "backbone"} < set(names) and len(names) > 3
    for name in names:
        assert texts.completions.create(model=name, prompt=PROMPT, **SAME).choices[0].text


def test_errors_are_objects_that_clients_read(labels, texts) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        labels.models.retrieve("range9")
    assert unknown.value.body == {
        "message": "no model 'range9' here; GET /v1/models lists them",
        "type": "invalid_request_error",
        "param": None,
        "code": "model_not_found",
    }
    with pytest.raises(openai.BadRequestError) as refused:
        labels.chat.completions.create(model="auto", messages=[{"role": "user", "content": "x"}])
    assert (refused.value.code, refused.value.type) == ("invalid_request", "invalid_request_error")
    with plain(labels) as client:
        for path, status, code in (
            ("/v1/embeddings", 405, "method_not_allowed"),
            ("/v1/responses", 404, "not_found"),
        ):
            reply = client.get(path)
            assert (reply.status, reply.body["error"]["code"]) == (status, code)
        reply = client.post("/v1/embeddings", b"x" * 2**24)
        assert (reply.status, reply.body["error"]["code"]) == (413, "body_too_long")
    with plain(labels) as client:
        for path in ("/v1/generations/x", "/v1/route", "/v2/x", "/classify", "/nowhere"):
            assert isinstance(client.get(path).body["error"], str)  # redhost's own routes


def test_an_error_within_a_stream_is_one_that_clients_read(live, texts) -> None:
    steps = iter(range(1000))

    def breaks(_: object, inputs: object) -> None:
        if next(steps) > 3:  # the prompt is read twice
            raise RuntimeError("a shape")

    hook = live.composed.backbone.trunk.model.register_forward_pre_hook(breaks)
    try:
        with pytest.raises(openai.APIError, match="failed on this: RuntimeError") as broken:
            list(texts.completions.create(model="auto", prompt=PROMPT, stream=True, **SAME))
    finally:
        hook.remove()
    body: Any = broken.value.body
    assert body["type"] == "api_error"


# -- vectors and labels ---------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"encoding_format": "float"}])
def test_an_embedding_is_the_backbones_vector(labels, composed_home, open_live, options) -> None:
    found = labels.embeddings.create(model="auto", input=[TEXT, "hello"], **options)
    backbone = open_live(composed_home).host.composed.backbone
    h = backbone.encode([TEXT, "hello"])
    vectors = torch.tensor([e.embedding for e in found.data])
    assert torch.equal(vectors, h)
    assert found.usage.prompt_tokens == sum(backbone.token_counts([TEXT, "hello"]))
    [one] = labels.embeddings.create(model="redhost", input=TEXT).data
    assert one.embedding == found.data[0].embedding


def plain(client: openai.OpenAI) -> Client:
    """Return a client without OpenAI's ideas of the same server."""
    return Client(str(client.base_url).removesuffix("/v1/"))


def classify(client: openai.OpenAI, body: dict[str, Any]) -> tuple[int, Any]:
    with plain(client) as sender:
        reply = sender.post("/classify", body)
    return reply.status, reply.body


def test_classify_answers_for_all_or_for_one(labels, composed_home, open_live) -> None:
    host = open_live(composed_home).host
    texts = [TEXT, "What is 8 plus 9?"]
    for model in ("auto", "range3"):
        status, body = classify(labels, {"model": model, "input": texts})
        assert status == 200 and body["redhost"]["generation"] == 3
        for answer, row in zip(host.predict(texts, each=True), body["data"], strict=True):
            own = answer if model == "auto" else (answer.by_expert or {})["range3"]
            assert (row["label"], row["probability"]) == (own.label, own.probability)
            assert row["weights"] == answer.weights
    assert classify(labels, {"model": "backbone", "input": texts})[0] == 404
    assert classify(labels, {"model": "auto", "input": []})[0] == 400


def test_a_server_of_labels_generates_nothing_and_the_other_way_round(labels, texts) -> None:
    instead = "does not generate text; use /classify or /v2/models/redhost/infer"
    with pytest.raises(openai.BadRequestError) as completed:
        labels.completions.create(model="auto", prompt="x")
    with pytest.raises(openai.BadRequestError) as talked:
        labels.chat.completions.create(model="auto", messages=[{"role": "user", "content": "x"}])
    for refused in (completed, talked):
        assert instead in refused.value.response.text
    with pytest.raises(openai.BadRequestError):
        texts.embeddings.create(model="auto", input="x")
    assert classify(texts, {"model": "auto", "input": "x"})[0] == 400


# -- completions ----------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["auto", "sums", "code", "backbone"])
def test_a_completion_is_the_hosts_text_by_all_or_by_one(speaking, texts, model) -> None:
    expert = None if model == "auto" else model
    tokens = expected(speaking, PROMPT, expert=expert)
    made = texts.completions.create(model=model, prompt=PROMPT, logprobs=1, **SAME)
    [choice] = made.choices
    assert choice.text == "".join(t.text for t in tokens) and choice.finish_reason == "length"
    assert choice.logprobs.tokens == [t.text for t in tokens]
    assert choice.logprobs.token_logprobs == pytest.approx(
        [math.log(t.probability) for t in tokens]
    )
    assert made.usage.completion_tokens == len(tokens) == 12
    assert made.usage.prompt_tokens == speaking.load(1).backbone.token_counts([PROMPT])[0]
    assert made.system_fingerprint == "generation-1"
    chunks = [
        *texts.completions.create(
            model=model,
            prompt=PROMPT,
            logprobs=1,
            stream=True,
            stream_options={"include_usage": True},
            **SAME,
        )
    ]
    assert "".join(p.choices[0].text for p in chunks if p.choices) == choice.text
    streamed = [p.choices[0].logprobs for p in chunks if p.choices and p.choices[0].logprobs]
    assert [n for p in streamed for n in p.text_offset] == choice.logprobs.text_offset
    assert [t for p in streamed for t in p.tokens] == choice.logprobs.tokens
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].usage == made.usage


def test_a_request_that_waits_for_the_tokenizer_holds_up_no_other(live, texts) -> None:
    lock = live.composed.backbone.trunk.lock
    with ThreadPoolExecutor(1) as pool, plain(texts) as other:
        with lock:  # as a pass holds it
            waiting = pool.submit(texts.completions.create, model="auto", prompt=PROMPT, **SAME)
            with pytest.raises(TimeoutError):
                waiting.result(0.5)
            other.connection.timeout = 5
            assert other.get("/v2/health/live").status == 200
            assert not waiting.done()
        assert waiting.result(60).choices[0].text


def test_several_prompts_are_several_choices(speaking, texts) -> None:
    prompts = [PROMPT, "the cat sat "]
    made = texts.completions.create(model="auto", prompt=prompts, **SAME)
    found = ["".join(t.text for t in expected(speaking, p)) for p in prompts]
    assert [c.text for c in made.choices] == found and [c.index for c in made.choices] == [0, 1]


def test_several_choices_for_a_prompt_have_seeds_of_their_own(speaking, texts) -> None:
    ask = partial(texts.completions.create, model="auto", max_tokens=12, n=2, seed=7)
    made = ask(prompt=[PROMPT, "12 + "])
    want = [
        "".join(t.text for t in expected(speaking, p, temperature=1, seed=s))
        for p in (PROMPT, "12 + ")
        for s in (7, 8)
    ]
    assert [(c.index, c.text) for c in made.choices] == [*enumerate(want)]
    assert len({*want}) > 2  # else the seeds would show nothing
    once = texts.completions.create(model="auto", prompt=[PROMPT, "12 + "], **SAME)
    assert made.usage.prompt_tokens == once.usage.prompt_tokens
    chunks = list(ask(prompt=PROMPT, stream=True, stream_options={"include_usage": True}))
    for index in (0, 1):
        shown = [c.text for p in chunks for c in p.choices if c.index == index]
        assert "".join(shown) == want[index]
    assert chunks[-1].usage.prompt_tokens == chunks[-1].usage.total_tokens - 24
    order = [c.index for p in chunks for c in p.choices]
    assert order[:4] == [0, 1, 0, 1]  # they are generated together


def test_a_choice_that_ends_leaves_the_others_going(speaking, texts) -> None:
    whole = ["".join(t.text for t in expected(speaking, p)) for p in (PROMPT, "the cat sat ")]
    stop = whole[0][3:6]
    ask = partial(texts.completions.create, model="auto", prompt=[PROMPT, "the cat sat "], **SAME)
    want = [text.partition(stop)[0] for text in whole]
    assert [c.text for c in ask(stop=stop).choices] == want
    chunks = [*ask(stop=stop, stream=True)]
    for index in (0, 1):
        shown = [c.text for p in chunks for c in p.choices if c.index == index]
        assert "".join(shown) == want[index]


@pytest.mark.parametrize(
    "options",
    [
        {"top_p": 0.5},
        {"top_k": 2},
        {"min_p": 0.2},
        {"repetition_penalty": 3},
        {"presence_penalty": 2},
        {"frequency_penalty": 2},
    ],
)
def test_sampling_is_that_of_the_function(speaking, texts, options) -> None:
    sampling = redhost_generate.Sampling(**options)
    want = expected(speaking, PROMPT, temperature=1.5, seed=3, sampling=sampling)
    plain = expected(speaking, PROMPT, temperature=1.5, seed=3)
    made = texts.completions.create(
        model="auto", prompt=PROMPT, max_tokens=12, temperature=1.5, seed=3, extra_body=options
    )
    assert made.choices[0].text == "".join(t.text for t in want)
    assert [t.id for t in want] != [t.id for t in plain]


def test_of_prompts_that_cannot_all_begin_none_is_left_under_way(speaking, monkeypatch) -> None:
    live, generate, begun = redhost.Live(speaking.session), Service.generate, []
    live.swap(1)

    async def remembered(*given: Any, **options: Any) -> Any:
        begun.append(await generate(*given, **options))  # so that no collector closes it
        return begun[-1]

    monkeypatch.setattr(Service, "generate", remembered)
    with running(live, options=Options(queue=2)) as (url, service), client_of(url) as client:
        ask = partial(client.completions.create, model="auto", temperature=0)
        with pytest.raises(openai.BadRequestError) as e:
            ask(prompt=[PROMPT] * 3)
        assert "at most 2 choices" in e.value.response.text
        for stream in (False, True):
            with pytest.raises(openai.BadRequestError):
                ask(prompt=[PROMPT, "a" * 600], stream=stream)  # the second is too long
            assert len(service.writer) == 0
        others = ask(prompt=PROMPT, max_tokens=400, stream=True)
        next(iter(others))
        with pytest.raises(openai.InternalServerError) as busy:
            ask(prompt=[PROMPT] * 2)
        assert "try again" in busy.value.response.text
        assert len(service.writer) == 1
        others.close()


def test_a_stop_text_ends_it_and_is_never_shown(speaking, texts) -> None:
    whole = "".join(t.text for t in expected(speaking, PROMPT))
    stop = whole[4:6]
    made = texts.completions.create(model="auto", prompt=PROMPT, stop=[stop, "\x00"], **SAME)
    [choice] = made.choices
    assert choice.text == whole[: whole.index(stop)] and choice.finish_reason == "stop"
    chunks = texts.completions.create(model="auto", prompt=PROMPT, stop=stop, stream=True, **SAME)
    assert "".join(p.choices[0].text for p in chunks if p.choices) == choice.text


def test_a_text_that_fills_the_model_ends_for_its_length(speaking, texts) -> None:
    longest = speaking.load(1).backbone.trunk.longest
    assert longest is not None
    tokens = expected(speaking, PROMPT, max_tokens=4000)
    made = texts.completions.create(model="auto", prompt=PROMPT, **{**SAME, "max_tokens": 4000})
    assert made.usage.completion_tokens == len(tokens) < 4000
    filled = made.usage.total_tokens >= longest - 1
    assert made.choices[0].finish_reason == ("length" if filled else "stop")
    assert filled  # the model of this test never ends by itself


@pytest.mark.parametrize(
    ("stops", "chunks", "shown"),
    [
        (["abc"], ["xa", "b", "d"], ["x", "", "abd"]),
        (["abc"], ["xab", "cd"], ["x", ""]),
        (["aab"], ["aa", "ab"], ["", "a"]),
        (["b", "ab"], ["ab"], [""]),
        ([], ["ab", ""], ["ab", ""]),
    ],
)
def test_what_may_begin_a_stop_text_is_held_back(stops, chunks, shown) -> None:
    reader = UntilStop(stops)
    found = [reader.feed(p) for p in chunks]
    if len(shown) == len(chunks) and not reader.ended:
        found[-1] += reader.rest()
    assert found == shown


def test_a_conversation_goes_through_the_backbones_template(speaking, texts) -> None:
    messages: Any = [
        {"role": "system", "content": "3 "},
        {"role": "user", "content": "+ 4 = "},
    ]
    made = texts.chat.completions.create(model="sums", messages=messages, logprobs=True, **SAME)
    tokens = expected(speaking, PROMPT, expert="sums")
    [choice] = made.choices
    assert choice.message.content == "".join(t.text for t in tokens)
    assert [t.token for t in choice.logprobs.content] == [t.text for t in tokens]
    stream = texts.chat.completions.create(model="sums", messages=messages, stream=True, **SAME)
    chunks = [c.delta.content for p in stream for c in p.choices]
    assert "".join(chunks) == choice.message.content
    with pytest.raises(openai.BadRequestError):
        texts.chat.completions.create(model="auto", messages=[{"role": "user", "content": "no"}])


def test_text_parts_of_a_message_are_its_text(texts) -> None:
    def answer(content: Any) -> str:
        messages: Any = [{"role": "user", "content": content}]
        made = texts.chat.completions.create(model="auto", messages=messages, **SAME)
        return made.choices[0].message.content

    parts = [{"type": "text", "text": text} for text in ("3 +", "4 = ")]
    assert answer(parts[1:]) == answer("4 = ") and answer(parts) == answer("3 +\n4 = ")
    with pytest.raises(openai.BadRequestError) as refused:
        answer([*parts, {"type": "image_url", "image_url": {"url": "data:,"}}])
    assert "image_url" in message_of(refused.value) and "\n" not in message_of(refused.value)


# -- JSON -----------------------------------------------------------------------------------------

PAIR: dict[str, Any] = {
    "type": "object",
    "properties": {
        "n": {"type": "integer", "maximum": 99, "minimum": 0},
        "ok": {"type": "boolean"},
    },
    "required": ["n", "ok"],
    "additionalProperties": False,
}


def form(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema as clients of OpenAI's API send it."""
    return {
        "type": "json_schema",
        "json_schema": {"name": "pair", "strict": True, "schema": schema},
    }


def message_of(error: openai.APIError) -> str:
    """Return the message of OpenAI's object."""
    body: Any = error.body
    return body["message"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", ["auto", "sums", "backbone"])
def test_a_response_format_is_followed_to_its_end(speaking, texts, model, stream) -> None:
    """By all experts and by one; each choice has a state of its own."""
    ask = partial(
        texts.chat.completions.create,
        model=model,
        messages=[{"role": "user", "content": PROMPT}],
        response_format=form(PAIR),
        stop=["\n"],
        top_p=0.9,
        seed=5,
        n=3,
        max_tokens=100,
    )
    if stream:
        chunks = [c for p in ask(stream=True) for c in p.choices]
        found = ["".join(c.delta.content for c in chunks if c.index == n) for n in range(3)]
        ends = [c.finish_reason for c in chunks if c.finish_reason]
    else:
        choices = ask().choices
        found, ends = [c.message.content for c in choices], [c.finish_reason for c in choices]
    assert ends == ["stop"] * 3
    for n, text in enumerate(found):
        jsonschema.validate(json.loads(text), PAIR)
        tokens = expected(
            speaking,
            PROMPT,
            expert=None if model == "auto" else model,
            temperature=1,
            seed=5 + n,
            max_tokens=100,
            sampling=redhost_generate.Sampling(top_p=0.9),
            grammar=redhost_generate.JsonGrammar(speaking.load(1), PAIR),
        )
        assert text == "".join(t.text for t in tokens)


def test_json_that_is_complete_with_its_last_token_is_no_matter_of_length(texts) -> None:
    ask = partial(
        texts.completions.create, model="auto", prompt=PROMPT, temperature=0, max_tokens=60
    )
    whole = ask(extra_body={"response_format": form(PAIR)})
    count = whole.usage.completion_tokens
    for most, end in ((count, "stop"), (count - 1, "length")):
        made = ask(extra_body={"response_format": form(PAIR)}, max_tokens=most)
        assert (made.choices[0].finish_reason, made.usage.completion_tokens) == (end, most)
    cut = ask(extra_body={"response_format": form(PAIR)}, stop='"ok"')
    assert whole.choices[0].text.startswith(cut.choices[0].text)
    assert cut.choices[0].finish_reason == "stop" and '"ok"' not in cut.choices[0].text


def test_a_json_object_is_one_and_text_is_any(speaking, texts) -> None:
    ask = partial(texts.completions.create, model="auto", prompt=PROMPT, temperature=0)
    for seed in range(8):
        given = {"response_format": {"type": "json_object"}}
        [choice] = ask(extra_body=given, seed=seed, temperature=2, max_tokens=200).choices
        assert choice.text.startswith("{")
        if choice.finish_reason == "stop":
            assert isinstance(json.loads(choice.text), dict)
    for given in ({"type": "text"}, None):
        made = ask(extra_body={"response_format": given}, max_tokens=12)
        assert made.choices[0].text == "".join(t.text for t in expected(speaking, PROMPT))


@pytest.mark.parametrize(
    ("response_format", "named"),
    [
        (form({"type": "array", "uniqueItems": True}), "uniqueItems"),
        (form({"type": "nothing"}), "Invalid type"),
        ({"type": "json_schema"}, "json_schema"),
        ({"type": "grammar"}, "type"),
    ],
)
def test_a_format_that_is_not_supported_is_400_and_says_what(texts, response_format, named) -> None:
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as refused:
            texts.chat.completions.create(
                model="auto",
                messages=[{"role": "user", "content": PROMPT}],
                response_format=response_format,
                stream=stream,
            )
        assert named in (message := message_of(refused.value)) and "\n" not in message


def test_without_llguidance_json_is_400_and_names_what_to_install(texts, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(openai.BadRequestError) as missing:
        texts.completions.create(
            model="auto", prompt=PROMPT, extra_body={"response_format": {"type": "json_object"}}
        )
    assert "pip install 'redhost-generate[json]'" in message_of(missing.value)


def test_a_prompt_is_as_long_as_the_model_reads(live, texts, monkeypatch) -> None:
    long, options = "3 + 4 = 7 " * 600, {**SAME, "max_tokens": 3}
    with pytest.raises(openai.BadRequestError, match="the prompt is too long"):
        texts.completions.create(model="sums", prompt=long, **options)
    monkeypatch.setattr(live.composed.backbone.trunk, "positions", 2 * len(long))
    made = texts.completions.create(model="sums", prompt=long, **options)
    talked = texts.chat.completions.create(
        model="sums", messages=[{"role": "user", "content": long}], **options
    )
    tokens = redhost_generate.generate(live.composed, long, expert="sums", **options)
    want = "".join(t.text for t in tokens)
    assert made.choices[0].text == talked.choices[0].message.content == want
    assert made.usage.prompt_tokens == len(long)


@pytest.mark.parametrize(
    "options",
    [
        {"n": 17},
        {"top_p": 1.5},
        {"logprobs": 5},
        {"echo": True},
        {"frequency_penalty": 3},
        {"best_of": 2},
        {"prompt": [1, 2]},
        {"max_tokens": 0},
        {"temperature": -1},
        {"stop": ["a"] * 5},
        {"extra_body": {"tools": [{}]}},
        {"extra_body": {"foo": 1}},
        {"seed": MAX_SEED + 1},
        {"seed": MAX_SEED, "n": 2},
    ],
)
def test_what_is_not_there_is_refused_not_left_out(texts, options) -> None:
    with pytest.raises(openai.BadRequestError):
        texts.completions.create(**{"model": "auto", "prompt": PROMPT, **SAME, **options})


def test_values_that_ask_for_nothing_are_taken(texts) -> None:
    options: dict[str, Any] = {"n": 1, "top_p": 1, "presence_penalty": 0, "logit_bias": {}}
    options |= {"seed": MAX_SEED, "extra_body": {"store": False, "metadata": {"a": "b"}}}
    made = texts.completions.create(model="auto", prompt=PROMPT, user="me", **SAME, **options)
    assert made.choices[0].text
    with pytest.raises(openai.NotFoundError):
        texts.completions.create(model="nobody", prompt=PROMPT)


# -- metrics --------------------------------------------------------------------------------------


def test_answers_are_counted_by_expert(labels) -> None:
    def counts() -> dict[str, float]:
        with plain(labels) as client:
            lines = client.get("/metrics").body.decode().splitlines()
        return {k: float(v) for k, v in (x.rsplit(" ", 1) for x in lines if "expert_" in x[:20])}

    before = counts()
    assert classify(labels, {"model": "auto", "input": [TEXT] * 3})[0] == 200
    after = counts()
    for name, more in {
        'redhost_expert_texts_total{expert="range3"}': 3,
        'redhost_expert_weight_total{expert="range3"}': 3,
        'redhost_expert_seconds_count{expert="range3"}': 3,
        'redhost_expert_texts_total{expert="range1"}': 0,
    }.items():
        assert after.get(name, 0) - before.get(name, 0) == pytest.approx(more, abs=0.02)


def test_an_expert_that_left_meanwhile_is_not_found(home, open_live) -> None:
    """The request named it while it was served; another generation answers."""

    class Swapped(redhost.Live):
        def predict(self, texts, **options):
            found = super().predict(texts, **options)
            others = {i: a for i, a in (found[0].by_expert or {}).items() if i != "range3"}
            return [dataclasses.replace(a, by_expert=others) for a in found]

    with running(open_live(home, Swapped)) as (url, _), client_of(url) as client:
        assert classify(client, {"model": "range3", "input": TEXT})[0] == 404
        assert classify(client, {"model": "range1", "input": TEXT})[0] == 200
