"""Servers of others in `redhost lab decoding`: whose text is whose, and refusals."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence

import pytest
from redhost_gateway.faulty_upstream import FaultyUpstream
from redhost_generate.engine_client import EngineClient
from redhost_generate.vllm import is_installed, vllm

import redhost


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A server whose texts are the field `user` of their requests, again and again."""
    loop, ready = asyncio.new_event_loop(), threading.Event()
    ports, ends = list[int](), asyncio.Event()

    async def serve() -> None:
        async with FaultyUpstream(any_model=False, tokens=3).listening() as port:
            ports.append(port)
            ready.set()
            await ends.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    assert ready.wait(10)
    yield f"http://127.0.0.1:{ports[0]}"
    loop.call_soon_threadsafe(ends.set)
    thread.join()
    loop.close()


def request(ids: Sequence[int], name: str, tokens: int) -> dict[str, object]:
    return {"model": name, "user": f"{sum(ids)}/{tokens}"}


def test_texts_at_the_same_time_are_those_of_their_prompts(address) -> None:
    prompts = [[n, 100] for n in range(8)]
    texts, first, last = EngineClient(address, request).generate(
        prompts, ["base-model"] * 8, tokens=5
    )
    assert texts == [f"{n + 100}/5 " * 3 for n in range(8)]
    assert 0 < first <= last


def test_a_server_that_refuses_gives_no_figure(address) -> None:
    with pytest.raises(RuntimeError, match="404"):
        EngineClient(address, request).generate([[1]], ["nobody"], tokens=5)


def test_a_vllm_that_does_not_start_is_named_with_its_last_words(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    command = tmp_path / "vllm"
    command.write_text("#!/bin/sh\necho reading\necho no such device >&2\nexit 1\n", "utf-8")
    command.chmod(0o755)
    assert is_installed()
    with (
        pytest.raises(redhost.MissingError) as raised,
        vllm(tmp_path / "model", {"a": tmp_path}, rank=8, threads=1),
    ):
        pass
    assert raised.value.found == "no such device"
