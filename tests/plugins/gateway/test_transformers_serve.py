"""The gateway before a real engine, `transformers serve`, with the official client."""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import openai
import pytest

import redhost

PROMPTS = ("3 + 4 = ", "the gat sat down\nthe cin", "def f129(x):\n    return x * 129")
BASE = "base-model"
OPTIONS: dict[str, Any] = {"max_tokens": 12, "temperature": 0}


@pytest.fixture(scope="module")
def engine(speaker_model, saved_adapters, tmp_path_factory) -> Iterator[str]:
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


def test_a_request_for_auto_is_answered_by_the_adapter_that_the_home_names(
    speaking_home, engine, gateway_of
) -> None:
    host = redhost.Host.open(speaking_home, plugins=redhost.plugins.Plugins())
    url, _ = gateway_of(speaking_home, engine, models={"backbone": BASE})
    texts: dict[str, set[str]] = {}
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        for prompt in PROMPTS:
            completion = client.completions.create(model="auto", prompt=prompt, **OPTIONS)
            expert = host.route(prompt)[0].expert
            name = {"backbone": BASE}.get(expert, expert)
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
            messages = [{"role": "user", "content": prompt}]
            chat = client.chat.completions.create(
                **{**OPTIONS, "model": "auto", "messages": messages}
            )
            assert chat.model.partition("@")[0] == name
            content = chat.choices[0].message.content  # before which they may repeat the prompt
            assert content.removeprefix(prompt) == by_name[name]
        assert len(texts) > 1 and all(len(made) > 1 for made in texts.values())  # control
        with pytest.raises(openai.APIStatusError) as refused:  # the engine's own answer
            client.completions.create(**{**OPTIONS, "model": "sums", "prompt": 3})
        assert (refused.value.status_code, "string" in refused.value.response.text) == (400, True)
