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
from redhost_gateway import gateway as gateway_module
from redhost_gateway.faulty_upstream import BASE, FaultyUpstream
from redhost_gateway.llama_cpp import scales_for
from redhost_gateway.upstream import ListedAdapter

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


def models_of(url: str) -> set[str]:
    return {model["id"] for model in httpx2.get(f"{url}/v1/models").json()["data"]}


def ready(url: str) -> tuple[int, Any]:
    answer = httpx2.get(f"{url}/health/ready")
    return answer.status_code, answer.json()


def listed(id_: int, path: str, task: str = "") -> dict[str, Any]:
    """Return what llama.cpp's server lists of an adapter."""
    return {"id": id_, "path": path, "scale": 1.0, "task_name": task, "prompt_prefix": ""}


def test_a_request_to_llama_cpp_has_the_scales(home, strict, gateway_of) -> None:
    address, state = strict
    digest = host_of(home).generations.load(2).members()["sums"][:12]
    state.scales = [listed(4, "x.gguf", f"sums-{digest}"), listed(7, "/m/the-code.gguf")]
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
    # llama.cpp answers any name with what it has.
    unknown = post(url, "x", model="cod")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
    state.scales = {"detail": "Not Found"}
    assert post(url, "x", model=BASE).json()["lora"] is None  # it has no scales, and passes
    for state.scales in ({"detail": "Not Found"}, []):
        refused = post(url, "x", model="code")
        assert (refused.status_code, refused.json()["error"]["code"]) == (502, "no_adapter")
        assert refused.headers["x-redhost-expert"] == "code"


def test_no_other_adapter_of_llama_cpps_answers_for_an_expert(
    home, strict, gateway_of, until
) -> None:
    """A file's name is nobody's word for what it is: here it is that of generation 1's expert."""
    host, (address, state) = host_of(home), strict
    members = {n: host.generations.load(n).members()["sums"][:12] for n in (1, 2)}
    url, gateway = gateway_of(home, address, loads="llama.cpp", limits={"check": 60})
    for path, task in (
        ("sums.gguf", ""),
        (f"sums-{members[2]}.gguf", ""),
        ("sums.gguf", f"sums-{members[1]}"),
        (f"sums-{members[2]}.gguf", f"sums-{members[1]}"),
    ):
        state.scales = [listed(0, path, task)]
        refused = post(url, "x", model="sums")
        message = refused.json()["error"]["message"]
        assert refused.status_code == 502 and f"expected the adapter sums-{members[2]}" in message
        assert f"found {task or path.removesuffix('.gguf')};" in message
        assert "redhost export sums --to gguf" in message
    state.scales = [listed(0, "any.gguf", f"sums-{members[2]}")]
    assert post(url, "x", model="sums").json()["lora"] == [{"id": 0, "scale": 1.0}]
    host.rollback(1)
    until(lambda: serves(gateway, 1))
    assert post(url, "x", model="sums").status_code == 502


def test_what_no_upstream_has_is_not_listed_and_the_rest_goes_on(
    home, strict, gateway_of, until
) -> None:
    host, (address, state) = host_of(home), strict
    digests = host.generations.load(2).members()
    state.scales = [listed(0, "code.gguf", f"code-{digests['code'][:12]}"), listed(1, "sums.gguf")]
    url, gateway = gateway_of(home, address, loads="llama.cpp")
    assert models_of(url) == {"auto", "code", "backbone", BASE}
    status, body = ready(url)
    assert (status, body["ready"], set(body["absent"])) == (200, True, {"sums"})
    assert body["absent"]["sums"][address].startswith("expected the adapter sums-")
    assert b"redhost_gateway_absent_experts 1.0" in gateway.metrics.text()
    assert httpx2.get(f"{url}/v1/models/code").json()["parent"] == "auto"
    assert httpx2.get(f"{url}/v1/models/sums").status_code == 404
    # Each request reads the list; the backbone alone needs one as well.
    state.scales = {"detail": "Not Found"}
    assert post(url, "x", model="code").status_code == 502
    status, body = ready(url)
    assert (status, set(body["absent"])) == (503, {"sums", "code", "backbone"})
    assert models_of(url) == {BASE}
    state.scales = [listed(0, "code.gguf", f"code-{digests['code'][:12]}")]
    until(lambda: models_of(url) == {"auto", "code", "backbone", BASE})  # no request is needed


def test_what_an_upstream_could_not_load_is_absent_until_it_can(
    home, strict, gateway_of, until, monkeypatch
) -> None:
    monkeypatch.setattr(gateway_module, "EAGER", 0)
    host, (address, state) = host_of(home), strict
    sums = f"sums-{host.generations.load(2).members()['sums'][:12]}"
    state.unloadable.add(sums)
    url, _ = gateway_of(home, address, loads="vllm")
    assert {"sums", "code", "backbone"} <= models_of(url)  # nothing was tried yet
    assert post(url, "x", model="sums").status_code == 502
    assert "sums" not in models_of(url) and {"auto", "code", "backbone"} <= models_of(url)
    status, body = ready(url)
    assert (status, list(body["absent"])) == (200, ["sums"])
    assert "max_lora_rank" in body["absent"]["sums"][address]
    monkeypatch.setattr(gateway_module, "LONGEST_PAUSE", 0.0)
    state.unloadable.clear()
    until(lambda: "sums" in models_of(url))  # no request is needed
    assert not ready(url)[1]["absent"] and sums in state.adapters


def test_where_no_upstream_answers_nothing_is_listed(home, listening, gateway_of, until) -> None:
    with listening(FaultyUpstream(any_model=False)) as address:
        url, _ = gateway_of(home, address)
        assert models_of(url) == {"auto", "backbone", BASE}  # it lists no sums and no code
        assert ready(url)[0] == 200
    until(lambda: ready(url)[0] == 503)
    assert models_of(url) == set()
    assert ready(url)[1]["absent"]["sums"] == {address: "it does not answer"}


def test_llama_cpps_scales() -> None:
    adapters = [
        ListedAdapter(id=0, path="/a/sums.gguf", task_name="sums-1"),
        ListedAdapter(id=1, path="tales.gguf"),
        ListedAdapter(id=2, path="again.gguf", task_name="sums-1"),
    ]

    def on(*args: Any, **options: Any) -> list[float] | None:
        scales = scales_for(*args, **options)
        return None if scales is None else [scale["scale"] for scale in scales]

    assert on(adapters, "sums-1") == [1.0, 0.0, 0.0]  # and not twice
    assert on(adapters, None) == [0.0, 0.0, 0.0]
    assert on(adapters, "tales") is on(adapters, "sums") is on(adapters, "") is None
    assert on(adapters, "tales", configured=True) == [0.0, 1.0, 0.0]
    assert on(adapters, "sums", configured=True) is None  # it says that it is another
    assert on(None, "sums-1") is on(None, None) is None and on([], None) == []
