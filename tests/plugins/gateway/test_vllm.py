"""The gateway before vLLM itself, which loads the adapters that a generation names.

`make build/vllm/.installed` installs vLLM for processors, built by somebody else from its sources.
It listens in an environment of its own: it needs older libraries than redhost is tested with.
"""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import openai
import pytest
from adapter_models import (
    PROMPTS,
    TARGETS,
    TOKENS,
    AdapterHome,
    continuation,
    save_adapters,
    save_model,
)

import redhost

VLLM = Path(__file__).parents[3] / "build/vllm/bin/vllm"
pytestmark = pytest.mark.skipif(
    not VLLM.exists(), reason="`make build/vllm/.installed` installs vLLM"
)

BASE = "base-model"
SECONDS = 300
NAMES = ("backbone", *TARGETS)
HALF = "\ufffd"
"""Half a character, which vLLM leaves out at the end of a text."""


class Engine:
    """vLLM with a model, on a port of its own.

    Args:
        model: The model's folder.
        log: Where it writes.
    """

    def __init__(self, model: Path, log: Path) -> None:
        self.model, self.log = model, log
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        options = ["--served-model-name", BASE, "--host", "127.0.0.1", "--port", str(self.port)]
        options += ["--enable-lora", "--max-lora-rank", "8", "--max-loras", "4"]
        options += ["--dtype", "float32", "--enforce-eager", "--max-model-len", "512"]
        options += ["--gpu-memory-utilization", "0.1"]  # of a processor's memory as well
        settings = {
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
        }
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [VLLM, "serve", str(self.model), *options],
                env={**os.environ, **settings},
                stdout=log,
                stderr=log,
                start_new_session=True,  # so that its workers can be ended with it
            )
        end = time.monotonic() + SECONDS
        while not self._answers():
            assert self.process.poll() is None and time.monotonic() < end, self.log.read_text()
            time.sleep(0.2)

    def stop(self) -> None:
        """End it, and every process that it started."""
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def models(self) -> set[str]:
        """Return what it lists."""
        with openai.OpenAI(base_url=f"{self.url}/v1", api_key="none") as client:
            return {model.id for model in client.models.list()}

    def _answers(self) -> bool:
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)) as connection:
            try:
                connection.request("GET", "/health")
                return connection.getresponse().status == 200
            except OSError:
                return False


@pytest.fixture(scope="module")
def model(speaker_model, tmp_path_factory) -> Path:
    return save_model("llama", speaker_model, tmp_path_factory.mktemp("model"), head=32)


@pytest.fixture(scope="module")
def adapters(model, tmp_path_factory) -> dict[str, dict[str, Path]]:
    """Two adapters of each expert, which say something else: for an old and a new generation."""
    folder = tmp_path_factory.mktemp("adapters")
    return {age: save_adapters(model, folder / age, seed=n) for n, age in enumerate(("old", "new"))}


@pytest.fixture(scope="module")
def engine(model, tmp_path_factory) -> Iterator[Engine]:
    engine = Engine(model, tmp_path_factory.mktemp("vllm") / "log")
    try:
        engine.start()
        yield engine
    finally:
        engine.stop()


@pytest.fixture(scope="module")
def texts(model, adapters) -> dict[tuple[str, str, str], str]:
    """What PEFT goes on with, by the generation's age, the expert and the prompt."""
    return {
        (age, name, prompt): continuation(model, adapters[age].get(name), prompt).rstrip(HALF)
        for age in adapters
        for name in NAMES
        for prompt in PROMPTS
    }


@pytest.fixture
def composed(model, adapters, generation, rows_of, tmp_path, monkeypatch) -> AdapterHome:
    """A home whose first generation has the old adapters."""
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    rows = {name: rows_of(name) for name in TARGETS}
    home = AdapterHome(tmp_path, model, task=generation, rows=rows)
    for name, folder in adapters["old"].items():
        home.install(name, folder)
    home.recompose()
    return home


@pytest.fixture
def url(composed, engine, gateway_of, tmp_path) -> str:
    """The address of a gateway over the home, before vLLM."""
    options = {"loads": "vllm", "models": {"backbone": BASE}, "folder": tmp_path / "loaded"}
    return str(gateway_of(composed.home, engine.url, **options)[0])


def answer(client: openai.OpenAI, name: str, prompt: str) -> tuple[str | None, str | None, str]:
    """Return the expert and the generation that an answer names, and its text."""
    raw = client.completions.with_raw_response.create(
        model=name, prompt=prompt, max_tokens=TOKENS, temperature=0
    )
    expert, number = (raw.headers.get(f"x-redhost-{key}") for key in ("expert", "generation"))
    return expert, number, raw.parse().choices[0].text.rstrip(HALF)


def test_vllm_goes_on_as_peft_does_with_the_adapter_that_the_home_names(
    composed, url, texts
) -> None:
    host = redhost.Host.open(composed.home, plugins=redhost.plugins.Plugins())
    assert len({text for (age, *_), text in texts.items() if age == "old"}) == 12  # control
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        for prompt in PROMPTS:
            for name in NAMES:
                assert answer(client, name, prompt) == (name, "1", texts["old", name, prompt])
            chosen = host.route(prompt)[0].expert
            assert answer(client, "auto", prompt) == (chosen, "1", texts["old", chosen, prompt])
            streamed = client.completions.create(
                model="auto", prompt=prompt, max_tokens=TOKENS, temperature=0, stream=True
            )
            text = "".join(c.choices[0].text for c in streamed if c.choices)
            assert text.rstrip(HALF) == texts["old", chosen, prompt]
        with pytest.raises(openai.BadRequestError, match="512"):  # vLLM's own answer
            client.completions.create(model="code", prompt="long " * 512, max_tokens=TOKENS)


def test_vllm_has_what_the_current_generation_names_and_gets_it_again_after_a_restart(
    composed, engine, url, adapters, texts, until
) -> None:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        seen, ended = list[tuple[str, tuple[str | None, str | None, str]]](), threading.Event()

        def go_on() -> None:
            while not ended.is_set():
                seen.extend((p, answer(client, "code", p)) for p in PROMPTS[1:])

        with ThreadPoolExecutor(4) as pool:
            askers = [pool.submit(go_on) for _ in range(4)]
            try:
                until(lambda: len(seen) > 20)
                composed.environment.uninstall("red-expert-tales")
                composed.environment.uninstall("red-expert-code")
                composed.install("code", adapters["new"]["code"])
                composed.recompose()
                until(lambda: seen[-1][1][1] == "2")
            finally:
                ended.set()
            assert [asker.result() for asker in askers] == [None] * 4
        ages = {"1": "old", "2": "new"}
        assert {number for _, (_, number, _) in seen} == {*ages}
        for prompt, (name, number, text) in seen:
            assert (name, text) == ("code", texts[ages[str(number)], "code", prompt])
        until(lambda: len(engine.models()) == 2)  # the base and the new adapter
        engine.stop()
        engine.start()
        assert engine.models() == {BASE}
        until(lambda: _is_right(client, texts))
    assert len(engine.models()) == 2


def _is_right(client: openai.OpenAI, texts: dict[tuple[str, str, str], str]) -> bool:
    """Whether the new adapter answers; errors are allowed, another's answer is not."""
    try:
        name, number, text = answer(client, "code", PROMPTS[0])
    except openai.APIStatusError:
        return False
    assert (name, number, text) == ("code", "2", texts["new", "code", PROMPTS[0]])
    return True
