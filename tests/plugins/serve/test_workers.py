"""Nothing that a request does ends a thread of the server, and ready tells if one has ended."""

from __future__ import annotations

import asyncio
import ctypes
import json
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from redhost_serve.batcher import Batcher
from redhost_serve.client import Client, Reply
from redhost_serve.live_shares import Saver
from redhost_serve.server import running
from redhost_serve.service import Options, Service
from redhost_serve.watch import Watch
from tokenizers import Regex, pre_tokenizers

import redhost

TEXT = "What is 37 plus 12?"
ENDS = [SystemExit(), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError()]
BACKTRACKING = Regex("(?:x+x+)+y")  # 40 times x is more than the expression's engine tries
UNREADABLE = "x" * 40


@contextmanager
def panicking(backbone: redhost.Backbone) -> Iterator[None]:
    """Let the backbone's own tokenizer panic at one text."""
    tokenizer = backbone.trunk.tokenizer.backend_tokenizer
    whole = tokenizer.pre_tokenizer
    first = pre_tokenizers.Split(BACKTRACKING, "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([first, whole] if whole else [first])
    try:
        with pytest.raises(BaseException, match="retry-limit") as e:
            tokenizer.encode(UNREADABLE)
        assert not isinstance(e.value, Exception)
        yield
    finally:
        tokenizer.pre_tokenizer = whole


def test_a_tokenizer_that_panics_refuses_its_text_and_the_next_is_answered(home, open_live) -> None:
    live = open_live(home)
    with running(live) as (url, service), Client(url) as client:
        before = client.infer([TEXT]).body
        with panicking(live.composed.backbone):
            for reply in (
                client.infer([UNREADABLE]),
                client.post("/v1/route", {"texts": [UNREADABLE]}),
                client.post("/classify", {"model": "range3", "input": UNREADABLE}),
            ):
                assert reply.status == 400 and reply.body["error"].startswith("a text: expected ")
                assert UNREADABLE not in str(reply.body)
            reply = client.post("/v1/embeddings", {"model": "auto", "input": UNREADABLE})
            assert reply.status == 400
            assert reply.body["error"]["message"].startswith("a text: expected ")
        assert client.infer([TEXT]).body == before
        assert service.working and client.get("/v2/health/ready").status == 200


def test_in_a_program_a_panic_is_one_line(home, open_live) -> None:
    host = open_live(home).host
    with panicking(host.composed.backbone):
        for ask in (host.predict, host.composed.backbone.encode, host.composed.backbone.cuts):
            with pytest.raises(redhost.UsageError, match="that the tokenizer can read, found 'xx"):
                ask([UNREADABLE * 100])


@pytest.mark.parametrize("error", ENDS, ids=repr)
def test_what_ends_a_thread_is_a_refusal_by_name(home, open_live, error) -> None:
    class Ending(redhost.Live):
        def predict(self, texts, **options):
            if "bad" in texts:
                raise error
            return super().predict(texts, **options)

    def ask(_: int) -> Reply:
        with Client(url) as other:
            return other.infer(["bad"])

    with running(open_live(home, Ending)) as (url, service), Client(url) as client:
        with ThreadPoolExecutor(6) as pool:
            bad = [*pool.map(ask, range(6))]
        name = type(error).__name__
        assert {(r.status, r.body["error"]) for r in bad} == {
            (503, f"the generation failed on this: {name}")
        }
        assert client.infer([TEXT]).output("label") == ["49"]
        assert service.working and client.get("/v2/health/live").status == 200


@pytest.mark.parametrize("error", [*ENDS, StopIteration()], ids=repr)
def test_a_text_in_progress_that_ends_its_thread_is_a_refusal_by_name(speaking, error) -> None:
    live = redhost.Live(speaking.session)
    live.swap(1)
    request = {"prompt": "3 + 4 = ", "max_tokens": 3}

    def ends(_: object, inputs: object) -> None:
        raise error

    with running(live) as (url, service), Client(url) as client:
        hook = live.composed.backbone.trunk.model.register_forward_pre_hook(ends)
        reply = client.post("/v1/generate", request)
        hook.remove()
        assert reply.status == 503 and type(error).__name__ in reply.body["error"]
        assert client.post("/v1/generate", request).status == 200 and service.working


@pytest.mark.parametrize("error", [*ENDS, StopIteration(), KeyError("x")], ids=repr)
def test_a_listing_that_ends_its_thread_is_a_refusal_by_name(home, open_live, error) -> None:
    def experts():
        raise error

    with running(open_live(home)) as (url, service), Client(url) as client:
        service.experts = experts
        reply = client.get("/v1/models")
        assert reply.status == 503 and type(error).__name__ in reply.body["error"]["message"]
        assert client.infer([TEXT]).status == 200


def test_too_few_answers_are_a_failure_of_those_requests_alone() -> None:
    async def ask() -> list[object]:
        batcher = Batcher[str, str](lambda texts: [t for t in texts if t != "x"], queue=9, texts=8)
        found = [
            *await asyncio.gather(batcher.ask(["a"]), batcher.ask(["x"]), return_exceptions=True),
            await asyncio.wait_for(batcher.ask(["b"]), 10),
        ]
        batcher.close()
        return found

    first, short, last = asyncio.run(ask())
    assert (first, last) == (["a"], ["b"])
    assert isinstance(short, Exception) and "0 answers to 1 texts" in str(short)


def end_batchers(others: set[threading.Thread]) -> None:
    """End all batchers' threads but the others, as no request can."""
    for thread in {t for t in threading.enumerate() if t.name == "redhost-batcher"} - others:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit)
        )


def test_a_thread_that_has_ended_is_seen_and_nobody_waits_for_it(home, open_live, until) -> None:
    others = set(threading.enumerate())
    with running(open_live(home)) as (url, service), Client(url) as client:
        assert client.get("/v2/health/live").status == 200
        end_batchers(others)  # which happens when it next wakes
        assert client.infer([TEXT]).status == 503
        until(lambda: not service.working)
        assert client.infer([TEXT]).status == 503
        live = client.get("/v2/health/live")
        assert (live.status, live.body) == (503, {"live": False})
        for path in ("/v2/health/ready", "/v2/models/redhost/ready"):
            assert client.get(path).status == 503


def test_a_helper_that_has_ended_is_seen(home, open_live) -> None:
    with running(open_live(home)) as (url, service), Client(url) as client:
        watch = Watch(service, every=0.01)
        watch.start()
        service.helpers.append(watch)
        assert client.get("/v2/health/ready").status == 200
        watch.stop()
        assert client.get("/v2/health/ready").status == 503


@pytest.mark.parametrize("error", [*ENDS, KeyError("x")], ids=repr)
def test_the_threads_that_save_and_watch_go_on_after_anything(
    home, open_live, until, error
) -> None:
    calls = {"save": 0, "look": 0}

    def fails(what: str) -> None:
        calls[what] += 1
        raise error

    class Looking(Watch):
        def look(self) -> None:
            fails("look")

    service = Service(open_live(home))
    threads = Saver(home, lambda: fails("save"), every=0.01), Looking(service, every=0.01)
    for thread in threads:
        thread.start()
    until(lambda: min(calls.values()) > 3)
    assert all(thread.is_alive() for thread in threads)
    for thread in threads:
        thread.stop()
    service.close()


@pytest.mark.parametrize("router", [[], {"shares": []}, {"shares": {"range1": "x"}}, "linear"])
def test_a_damaged_receipt_stops_no_thread_and_no_metrics(
    composed_home, tmp_path: Path, open_live, router
) -> None:
    home = tmp_path / "home"
    shutil.copytree(composed_home, home)
    live = open_live(home)
    with running(live, options=Options()) as (url, service), Client(url) as client:
        client.infer([TEXT])
        receipt = json.loads(live.host.generations.file(3, "receipt.json"))
        for file in home.rglob("receipt.json"):
            file.chmod(0o644)
            file.write_text(json.dumps({**receipt, "router": router}))
        assert client.get("/metrics").status == 200
        assert service.shares()[0] == {}
