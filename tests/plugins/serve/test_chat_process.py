"""A chat template is somebody's program: it is rendered elsewhere, and only within its limits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from redhost_serve.chat_process import ChatProcess
from redhost_serve.client import Client, Reply
from redhost_serve.problems import HttpProblem
from redhost_serve.server import running

import redhost

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "system", "content": "é\n"}, {"role": "user", "content": "3 + 4 = "}]
PLAIN = (
    "{{ bos_token }}{%- for m in messages %}{{ m['role'] }}: {{ m['content'] | tojson }}\n"
    "{% endfor %}{% if add_generation_prompt %}>{% endif %}"
)
ENDLESS = {
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "a power": "{{ 9 ** (9 ** 9) }}",
    "memory": "{{ 'x' * 10 ** 10 }}",
    "memory in a loop": "{% for a in range(9999) %}{{ 'x' * 10 ** 8 }}{% endfor %}",
    "a long prompt": "{{ 'x' * (2 ** 20 + 1) }}",
    "an exception": "{{ raise_exception('no') }}",
    "an attribute": "{{ messages.__class__.__mro__[1].__subclasses__() }}",
    "no template": "{% for",
}


@pytest.fixture
def tokenizer(speaking) -> Any:
    return speaking.load(1).backbone.trunk.tokenizer


@contextmanager
def having(tokenizer: Any, template: str) -> Iterator[None]:
    before, tokenizer.chat_template = tokenizer.chat_template, template
    yield
    tokenizer.chat_template = before


@pytest.fixture
def process() -> Iterator[ChatProcess]:
    process = ChatProcess()
    yield process
    process.close()


def test_a_prompt_is_what_transformers_itself_renders(tokenizer, process) -> None:
    with having(tokenizer, PLAIN):
        expected = tokenizer.apply_chat_template(
            MESSAGES, tokenize=False, add_generation_prompt=True
        )
        assert process.render(tokenizer, MESSAGES) == expected
        assert expected.endswith(">") and "\\n" in expected


@pytest.mark.parametrize("name", ENDLESS)
def test_a_template_beyond_its_limits_is_refused_and_the_next_is_rendered(
    tokenizer, process, name
) -> None:
    start = time.monotonic()
    with having(tokenizer, ENDLESS[name]), pytest.raises(HttpProblem) as e:
        process.render(tokenizer, MESSAGES)
    assert e.value.status == 400 and "chat template" in e.value.reason
    assert time.monotonic() - start < 30
    with having(tokenizer, "{{ messages[1].content }}"):
        assert process.render(tokenizer, MESSAGES) == "3 + 4 = "


def test_while_a_template_loops_everything_else_is_answered(speaking, tokenizer, until) -> None:
    live = redhost.Live(speaking.session)
    live.swap(1)
    tokenizer = live.composed.backbone.trunk.tokenizer
    request = {"model": "auto", "messages": MESSAGES, "max_tokens": 3, "temperature": 0}

    def chat(url: str) -> Reply:
        with Client(url) as client:
            return client.post(CHAT, request)

    with running(live) as (url, service), Client(url) as client, ThreadPoolExecutor(1) as pool:
        with having(tokenizer, "{{ messages[1].content }}"):
            whole = chat(url)  # the process runs now
        with having(tokenizer, ENDLESS["loops"]):
            slow = pool.submit(chat, url)
            assert _slowest(client, lambda: not slow.done()) < 1
        refused = slow.result()
        assert refused.status == 400
        assert "within 2 seconds" in refused.body["error"]["message"]
        with having(tokenizer, "{{ messages[1].content }}"):
            assert chat(url).body["choices"] == whole.body["choices"] and whole.status == 200
        assert service.working


def _slowest(client: Client, during: Callable[[], bool]) -> float:
    """Return the longest time of a health check while something goes on."""
    seconds = []
    while during():
        start = time.monotonic()
        assert client.get("/v2/health/ready").status == 200
        seconds.append(time.monotonic() - start)
        time.sleep(0.02)
    assert len(seconds) > 10
    return max(seconds)
