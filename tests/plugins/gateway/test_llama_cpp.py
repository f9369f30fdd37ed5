"""The gateway before llama.cpp's own server, with adapters that `redhost export` wrote for it."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import redhost_generate
from adapter_models import (
    PROMPTS,
    TOKENS,
    AdapterHome,
    continuation,
    save_adapters,
    save_model,
)
from gguf_models import write_gguf_model

import redhost
from redhost.cli import main

pytest.importorskip("xllamacpp", reason="`make .venv/interfaces` installs it")

KINDS = ("llama", "mistral", "qwen2", "qwen3")

SERVER = """
import sys, xllamacpp
model, port, *adapters = sys.argv[1:]
options = xllamacpp.CommonParams()
options.model.path, options.port = model, int(port)
options.model_alias = {"base", "basis"}
options.n_ctx, options.n_parallel, options.cpuparams.n_threads = 2048, 1, 1
options.warmup = False
options.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
options.cache_type_k = options.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
options.lora_adapters = [xllamacpp.CommonAdapterLoraInfo(path, 1.0) for path in adapters]
server = xllamacpp.Server(options)
print(server.listening_address, flush=True)
sys.stdin.read()
"""
"""What `llama-server --model FILE --lora FILE …` does, in Python.

Its attention is made as exact as that of transformers; by default it rounds to half precision. All
requests share one slot: what it caches of a prompt under one adapter is not for another.
"""


@contextlib.contextmanager
def llama_server(model: Path, adapters: list[Path], log: Path) -> Iterator[str]:
    """Run llama.cpp's server with adapters whose scales are zero; yield its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            [sys.executable, "-c", SERVER, str(model), str(port), *map(str, adapters)],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as server,
    ):
        assert server.stdout is not None and server.stdin is not None
        try:
            address = server.stdout.readline().strip()
            assert address, log.read_text()
            yield address
        finally:
            server.stdin.close()


@pytest.fixture
def composed(
    speaker_model, rows_of, generation, tmp_path, monkeypatch
) -> Callable[[str], tuple[Path, dict[str, Path], Path]]:
    """Return the function from a kind of model to the model, its adapters, and a home of both."""

    def make(kind: str) -> tuple[Path, dict[str, Path], Path]:
        model = save_model(kind, speaker_model, tmp_path / "model")
        adapters = save_adapters(model, tmp_path / "adapters")
        monkeypatch.syspath_prepend(str(tmp_path / "site"))
        rows = {name: rows_of(name) for name in adapters}
        made = AdapterHome(tmp_path, model, task=generation, rows=rows)
        for name, folder in adapters.items():
            made.install(name, folder)
        made.recompose()
        return model, adapters, made.home

    return make


@pytest.mark.parametrize("kind", KINDS)
def test_llama_cpp_goes_on_as_peft_does_with_the_adapter_that_the_home_names(
    kind, composed, gateway_of, tmp_path
) -> None:
    model, adapters, home = composed(kind)
    # What the files are called is of no account: each says itself what it is.
    files = [exported(name, tmp_path / name, home) for name in adapters]
    files = [f.rename(f.with_name(f"{n}.gguf")) for n, f in enumerate(files)]
    host = redhost.Host.open(home, plugins=redhost.plugins.Plugins())
    base = write_gguf_model(model, tmp_path / "base.gguf")
    with llama_server(base, files, tmp_path / "log") as address:
        url, _ = gateway_of(home, address, loads="llama.cpp")
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:

            def ask(name: str, prompt: str) -> tuple[str | None, str]:
                answer = client.completions.with_raw_response.create(
                    model=name, prompt=prompt, max_tokens=TOKENS, temperature=0
                )
                return answer.headers.get("x-redhost-expert"), answer.parse().choices[0].text

            listed = {model.id for model in client.models.list()}
            assert listed == {"auto", "backbone", *adapters, "base"}
            with pytest.raises(openai.NotFoundError):
                ask("another", PROMPTS[0])  # the server itself would answer with what it has
            texts = set[str]()
            for prompt in PROMPTS:
                expected = {
                    name: continuation(model, adapters.get(name), prompt)
                    for name in ("backbone", *adapters)
                }
                texts |= {f"{prompt} {text}" for text in expected.values()}
                for name, text in expected.items():
                    assert ask(name, prompt) == (name, text)
                chosen = host.route(prompt)[0].expert
                assert ask("auto", prompt) == (chosen, expected[chosen])
                # The server applies all adapters from its start; the generation names none here.
                for alias in ("base", "basis"):
                    assert ask(alias, prompt) == (None, expected["backbone"])
            assert len(texts) == len(PROMPTS) * (1 + len(adapters))  # control: each says its own


def exported(name: str, out: Path, home: Path) -> Path:
    """Export an expert's adapter by the command; return its file."""
    with pytest.raises(SystemExit) as ended:
        main(["export", name, "--to", "gguf", "--out", str(out), "--home", str(home)])
    assert ended.value.code == 0
    return out / f"{name}.gguf"


def test_anothers_file_under_its_name_is_refused_and_a_started_text_is_redhosts(
    composed, gateway_of, tmp_path, capfd
) -> None:
    model, adapters, home = composed("qwen3")
    code = exported("code", tmp_path / "code", home)
    assert "--override-kv tokenizer.ggml.add_bos_token=bool:true" in capfd.readouterr().err
    wrong = tmp_path / "tales.gguf"
    wrong.write_bytes(code.read_bytes())  # as a mistake with files leaves it
    base = write_gguf_model(model, tmp_path / "base.gguf", starts=True)
    host = redhost.Host.open(home, plugins=redhost.plugins.Plugins())
    with llama_server(base, [wrong], tmp_path / "log") as address:
        url, _ = gateway_of(home, address, loads="llama.cpp")
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            options: dict[str, Any] = {"max_tokens": TOKENS, "temperature": 0}
            with pytest.raises(openai.APIStatusError) as refused:
                client.completions.create(model="tales", prompt=PROMPTS[0], **options)
            digest = host.generations.load(1).members()["tales"][:12]
            assert refused.value.status_code == 502
            assert f"expected the adapter tales-{digest}, found code-" in refused.value.message
            assert "tales" not in {model.id for model in client.models.list()}
            unstarted, decode = set[bool](), host.composed.backbone.trunk.tokenizer.decode
            for prompt in PROMPTS:
                answer = client.completions.create(model="code", prompt=prompt, **options)
                own = redhost_generate.generate(host.composed, prompt, expert="code", **options)
                text = decode([token.id for token in own], skip_special_tokens=True)
                assert answer.choices[0].text == text
                unstarted.add(continuation(model, adapters["code"], prompt) == text)
            assert False in unstarted  # control: the start token counts
