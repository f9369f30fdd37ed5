"""The example that chooses an adapter before `transformers serve`, with the official client."""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from redhost_serve.server import running
from redhost_serve.service import Options

import redhost

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "choose_upstream.py"
PROMPTS = ("3 + 4 = ", "the gat sat down\nthe cin", "def f129(x):\n    return x * 129")
BASE = "base-model"
OPTIONS: dict[str, Any] = {"max_tokens": 12, "temperature": 0}


@pytest.fixture(scope="module")
def example() -> Any:
    """The example, as a module."""
    spec = importlib.util.spec_from_file_location("choose_upstream", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def upstream(speaker_model, saved_adapters, tmp_path_factory) -> Iterator[str]:
    """The address of `transformers serve`, to which a model's name is a folder beside it."""
    models = tmp_path_factory.mktemp("upstream")
    for name, folder in {BASE: speaker_model, **saved_adapters}.items():
        shutil.copytree(speaker_model, models / name)
        shutil.copytree(folder, models / name, dirs_exist_ok=True)
        (models / name / "chat_template.jinja").write_text("{{ messages[-1]['content'] }}")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "transformers.cli.transformers", "serve", "--device", "cpu"]
    settings = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    with (
        (models / "log").open("wb") as log,
        subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port)],
            cwd=models,
            env=settings,
            stdout=log,
            stderr=log,
        ) as server,
    ):
        try:
            while not answers(port):
                assert server.poll() is None, (models / "log").read_text()
                time.sleep(0.2)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()


def answers(port: int) -> bool:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=5)) as connection:
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except OSError:
            return False


@contextlib.contextmanager
def proxied(example: Any, **options: Any) -> Iterator[openai.OpenAI]:
    """Run the example, and yield a client of it."""
    server = example.proxy(("127.0.0.1", 0), **{"names": {"backbone": BASE}, **options})
    server.RequestHandlerClass.log_message = lambda *_: None
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    try:
        with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
            yield client
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def served(speaking: redhost.Host) -> Iterator[str]:
    """The address of a server whose host has the three adapters."""
    live = redhost.Live(speaking.session)
    live.swap(1)
    with running(live, options=Options()) as (url, _):
        yield url


@pytest.fixture
def own(speaking: redhost.Host) -> Callable[[str], str]:
    """Return the function from a prompt to the upstream's name of whose it is."""
    live = redhost.Live(speaking.session)
    live.swap(1)
    return lambda prompt: {"backbone": BASE}.get(n := live.route([prompt])[0].expert, n)


def test_a_request_for_auto_is_answered_by_the_adapter_that_the_host_names(
    example, upstream, served, own
) -> None:
    texts: dict[str, set[str]] = {}
    with proxied(example, redhost=served, upstream=upstream) as client:
        for prompt in PROMPTS:
            completion = client.completions.create(model="auto", prompt=prompt, **OPTIONS)
            name = own(prompt)
            assert completion.model.partition("@")[0] == name
            by_name = {
                n: client.completions.create(model=n, prompt=prompt, **OPTIONS).choices[0].text
                for n in {name, BASE, "sums"}
            }
            assert completion.choices[0].text == by_name[name] != ""
            texts.setdefault(name, set()).update(by_name.values())
            streamed = client.completions.create(
                model="auto", prompt=prompt, stream=True, **OPTIONS
            )
            text = "".join(c.choices[0].text for c in streamed if c.choices)
            cut = "\ufffd"  # half a character, which a stream of theirs leaves out at its end
            assert text.rstrip(cut) == by_name[name].rstrip(cut)
            messages = [{"role": "user", "content": "no"}, {"role": "user", "content": prompt}]
            chat = client.chat.completions.create(
                **{**OPTIONS, "model": "auto", "messages": messages}
            )
            assert chat.model.partition("@")[0] == name
            content = chat.choices[0].message.content  # before which they may repeat the prompt
            assert content.removeprefix(prompt) == by_name[name]
        assert len(texts) > 1 and all(len(made) > 1 for made in texts.values())  # control
        with pytest.raises(openai.APIStatusError) as refused:  # the upstream's own answer
            client.completions.create(**{**OPTIONS, "model": "sums", "prompt": 3})
        assert (refused.value.status_code, "string" in refused.value.response.text) == (400, True)


def test_who_did_not_answer_is_named(example, upstream, served) -> None:
    nobody = "http://127.0.0.1:9"
    cases: list[tuple[str, str, dict[str, Any], int, str]] = [
        (nobody, upstream, {"model": "auto"}, 502, "redhost does not answer"),
        (served, nobody, {"model": "auto"}, 502, "the upstream does not answer"),
        (served + "/v0", upstream, {"model": "auto"}, 502, "redhost answered 404"),
        (served, upstream, {"model": "auto", "prompt": ["a", "b"]}, 400, "only text is routed"),
    ]
    for redhost_url, upstream_url, body, status, message in cases:
        with (
            proxied(example, redhost=redhost_url, upstream=upstream_url) as client,
            pytest.raises(openai.APIStatusError) as refused,
        ):
            client.completions.create(**{"prompt": "3 + 4 = ", **OPTIONS, **body})
        assert refused.value.status_code == status and message in refused.value.response.text
    with proxied(example, redhost=nobody, upstream=upstream) as client:  # a name needs no host
        made = client.completions.create(model="sums", prompt="3 + 4 = ", **OPTIONS)
    assert made.choices[0].text
