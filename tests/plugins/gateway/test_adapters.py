"""Adapters from the store at upstreams that load them, and swaps of generations under load."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from redhost_gateway import adapters
from redhost_gateway.adapters import scales_for
from redhost_gateway.faulty_upstream import BASE, FaultyUpstream

import redhost
from redhost.registry.home.revoked import Revocation, Revocations, RevokedList

PROMPTS = ("3 + 4 = ", "the gat sat down\nthe cin", "def f129(x):\n    return x * 129")


@pytest.fixture
def home(speaking_home: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(speaking_home, tmp_path / "home"))


@pytest.fixture
def strict(listening) -> Iterator[tuple[str, FaultyUpstream]]:
    """A server that answers with what is loaded alone, and its state."""
    state = FaultyUpstream(any_model=False)
    with listening(state) as url:
        yield url, state


def host_of(home: Path) -> redhost.Host:
    return redhost.Host.open(home, plugins=redhost.plugins.Plugins())


def weights_of(host: redhost.Host, number: int) -> dict[str, str]:
    """Return expert → sha256 of the weights that a generation names."""
    members = host.generations.load(number).experts
    stored = {m.id: host.store.expert(m.digest, name=m.id).weights for m in members}
    return {name: hashlib.sha256(data).hexdigest() for name, data in stored.items()}


def post(url: str, prompt: str, **fields: Any) -> httpx2.Response:
    body = {"model": "auto", "prompt": prompt, **fields}
    return httpx2.post(f"{url}/v1/completions", json=body, timeout=30)


def names(host: redhost.Host, number: int) -> set[str]:
    return {f"{i}-{d[:12]}" for i, d in host.generations.load(number).members().items()}


def test_what_a_generation_names_is_loaded_and_what_it_withdrew_unloaded(
    home, strict, gateway_of, until
) -> None:
    host, (address, state) = host_of(home), strict
    host.rollback(1)
    url, _ = gateway_of(home, address, loads="vllm")
    assert set(state.adapters) == names(host, 1) and len(state.adapters) == 3
    for prompt in PROMPTS:
        answer = post(url, prompt)
        expert = answer.headers["x-redhost-expert"]
        assert expert == host.route(prompt)[0].expert
        digest = weights_of(host, 1).get(expert, "")
        assert answer.json()["digest"] == digest
        assert answer.json()["model"].startswith(expert if digest else BASE)
    assert post(url, "x", model="tales").json()["digest"] == weights_of(host, 1)["tales"]
    host.rollback(2)
    until(lambda: set(state.adapters) == names(host, 2))
    assert post(url, "x", model="sums").json()["digest"] == weights_of(host, 2)["sums"]
    assert weights_of(host, 1)["sums"] != weights_of(host, 2)["sums"]
    config, weights = sorted((home / "gateway").glob("sums-*/*"))[:2]
    assert (config.name, weights.name) == (adapters.CONFIG, adapters.WEIGHTS)


def test_an_upstream_that_restarts_gets_its_adapters_again(home, strict, gateway_of, until) -> None:
    host, (address, state) = host_of(home), strict
    url, _ = gateway_of(home, address, loads="vllm", limits={"check": 60})
    state.adapters.clear()
    assert post(url, "x", model="code").json()["digest"] == weights_of(host, 2)["code"]
    url, _ = gateway_of(home, address, loads="vllm")
    state.adapters.clear()
    until(lambda: not state.adapters or set(state.adapters) == names(host, 2))
    assert post(url, "x", model="sums").json()["digest"] == weights_of(host, 2)["sums"]


def test_a_damaged_adapter_is_loaded_nowhere(home, strict, gateway_of) -> None:
    host, (address, state) = host_of(home), strict
    digest = host.generations.load(2).members()["code"]
    with (home / "store" / digest / "adapter_model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"!")
    url, gateway = gateway_of(home, address, loads="vllm")
    assert gateway.serving is None and "stored 'code'" in gateway.trouble
    assert not any(name.startswith("code") for name in state.adapters)
    answer = post(url, PROMPTS[0])
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "nothing_composed")
    assert post(url, "x", model=BASE).status_code == 200  # names pass all the same


def test_what_is_revoked_chooses_no_longer(home, strict, gateway_of, until) -> None:
    host, (address, state) = host_of(home), strict
    url, gateway = gateway_of(home, address, loads="vllm")
    assert gateway.serving.number == 2
    revoke(host, host.generations.load(2).members()["sums"])
    until(lambda: serves(gateway, 1) and set(state.adapters) == names(host, 1))
    assert post(url, PROMPTS[0]).headers["x-redhost-generation"] == "1"
    assert host.generations.current() == 2  # a gateway changes no home
    revoke(host, *(d for n in (1, 2) for d in host.generations.load(n).members().values()))
    until(lambda: gateway.serving is None and not state.adapters)
    answer = post(url, PROMPTS[0])
    assert answer.status_code == 503 and "revoked" in answer.json()["error"]["message"]


def test_what_is_loaded_while_an_upstream_is_checked_is_unloaded_once_nothing_names_it(
    home, strict, gateway_of, until, monkeypatch
) -> None:
    host, (address, state) = host_of(home), strict
    _, gateway = gateway_of(home, address, loads="vllm")
    until(lambda: set(state.adapters) == names(host, 2))
    [(upstream, loader)] = gateway.loaders.items()
    check, digest = upstream.check, host.generations.load(1).members()["tales"]
    loaded = list[str]()

    async def late() -> None:
        await check()
        if not loaded:
            loaded.append(await loader.ensure("tales", digest))

    monkeypatch.setattr(upstream, "check", late)
    until(lambda: loaded)
    assert loaded[0] not in names(host, 2)
    until(lambda: set(state.adapters) == names(host, 2))


def serves(gateway: Any, number: int) -> bool:
    serving = gateway.serving
    return serving is not None and serving.number == number


def revoke(host: redhost.Host, *digests: str) -> None:
    entries = tuple(Revocation(digest=d, reason="wrong", revoked_at="2026-11-28") for d in digests)
    revoked = RevokedList(serial=len(digests), entries=entries)
    host.store.write_revocations(Revocations(lists={"key": revoked}))


def storm(url: str, swaps: threading.Event) -> list[tuple[str, str, str]]:
    """Ask until swaps have ended; return expert, generation and digest of each answer."""
    found: list[tuple[str, str, str]] = []

    async def ask(client: httpx2.AsyncClient, n: int) -> None:
        while not swaps.is_set():
            body = {"model": "auto", "prompt": PROMPTS[n % 3], "user": str(n)}
            answer = await client.post(f"{url}/v1/completions", json=body)
            assert answer.status_code == 200 and answer.json()["id"] == str(n)
            named = (answer.headers[f"x-redhost-{x}"] for x in ("expert", "generation"))
            found.append((*named, answer.json()["digest"]))

    async def all_of() -> None:
        async with httpx2.AsyncClient(timeout=30) as client:
            await asyncio.gather(*(ask(client, n) for n in range(12)))

    asyncio.run(all_of())
    return found


def swapped(home: Path, url: str, gateway: Any, until: Any) -> list[tuple[str, str, str]]:
    """Swap between the generations while requests are answered; return what was answered."""
    host, ended, found = host_of(home), threading.Event(), list[Any]()
    thread = threading.Thread(target=lambda: found.extend(storm(url, ended)))
    thread.start()
    try:
        for number in (1, 2, 1):
            host.rollback(number)
            until(lambda n=number: serves(gateway, n))
    finally:
        ended.set()
        thread.join()
    return found


def wrong(home: Path, found: list[tuple[str, str, str]]) -> int:
    """Return how many were answered by weights that their generation does not name."""
    named = {str(n): weights_of(host_of(home), n) for n in (1, 2)}
    return sum(named[g].get(expert, "") != digest for expert, g, digest in found)


def test_no_request_is_answered_by_an_adapter_that_its_generation_does_not_name(
    home, strict, gateway_of, until
) -> None:
    url, gateway = gateway_of(home, strict[0], loads="vllm")
    found = swapped(home, url, gateway, until)
    assert {generation for _, generation, _ in found} == {"1", "2"} and len(found) > 50
    assert any(digest for _, _, digest in found)
    assert wrong(home, found) == 0


def test_control_names_without_digests_answer_with_others(
    home, strict, gateway_of, until, monkeypatch
) -> None:
    monkeypatch.setattr(adapters, "DIGITS", 0)
    url, gateway = gateway_of(home, strict[0], loads="vllm")
    assert wrong(home, swapped(home, url, gateway, until)) > 0


def test_sglangs_paths_and_names(home, strict, gateway_of) -> None:
    host, (address, state) = host_of(home), strict
    url, _ = gateway_of(home, address, loads="sglang")
    answer = post(url, "x", model="sums").json()
    assert answer["digest"] == weights_of(host, 2)["sums"]
    assert answer["model"] == f"{BASE}:sums-{host.generations.load(2).members()['sums'][:12]}"
    assert state.seen[0][0] == "/load_lora_adapter"


def test_a_request_to_llama_cpp_has_the_scales(home, strict, gateway_of) -> None:
    address, state = strict
    state.scales = [{"id": 4, "path": "sums.gguf"}, {"id": 7, "path": "/m/the-code.gguf"}]
    url, _ = gateway_of(home, address, loads="llama.cpp", models={"code": "the-code"})
    for name, on in {"code": 7, "sums": 4, "backbone": None}.items():
        answer = post(url, "x", model=name, cache_prompt=True).json()
        assert answer["model"] == BASE
        assert json.loads(state.seen[-1][2])["cache_prompt"] is False  # of other scales, perhaps
        assert answer["lora"] == [{"id": i, "scale": float(i == on)} for i in (4, 7)]
    # One that this generation does not name: all that the server was started with would answer.
    answer = post(url, "x", model=BASE).json()
    assert answer["lora"] == [{"id": i, "scale": 0.0} for i in (4, 7)]
    given = [{"id": 4, "scale": 0.5}]
    assert post(url, "x", model=BASE, lora=given).json()["lora"] == given
    state.scales = {"detail": "Not Found"}
    assert post(url, "x", model=BASE).json()["lora"] is None  # it has no scales, and passes
    refused = post(url, "x", model="code")
    assert (refused.status_code, refused.json()["error"]["code"]) == (502, "no_adapter")
    assert refused.headers["x-redhost-expert"] == "code"
    state.scales = []
    refused = post(url, "x", model="code")
    assert (refused.status_code, refused.json()["error"]["code"]) == (502, "no_adapter")


def test_llama_cpps_scales() -> None:
    listed = json.dumps(
        [{"id": 0, "path": "/a/sums.gguf", "scale": 1.0}, {"id": 1, "path": "tales.gguf"}]
    ).encode()
    assert scales_for(listed, "tales") == [{"id": 0, "scale": 0.0}, {"id": 1, "scale": 1.0}]
    assert scales_for(listed, "backbone") == [{"id": 0, "scale": 0.0}, {"id": 1, "scale": 0.0}]
    assert scales_for(listed, "code") is None
    for other in (b'{"detail":"Not Found"}', b"<html>", b'[{"scale": 1}]', b"", b"[3]"):
        assert scales_for(other, "code") is None  # a server without these scales, such as Python's
