"""Micro-batching: what waits together is answered together, and only so much may wait."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from redhost_serve.batcher import Batcher, FullError
from redhost_serve.client import INFER, Client
from redhost_serve.server import running
from redhost_serve.service import Options

import redhost

TEXT = "What is 37 plus 12?"
TENSOR = {"name": "text", "datatype": "BYTES", "shape": [1], "data": [TEXT]}
REQUEST = {"inputs": [TENSOR]}


class Slow(redhost.Live):
    """A live host that answers when a test lets it."""

    go_on = threading.Event()

    def predict(self, texts, **options):
        assert self.go_on.wait(30)
        return super().predict(texts, **options)


def test_a_full_queue_is_503_and_says_when_to_come_back(home, open_live, until) -> None:
    Slow.go_on.clear()
    with (
        running(open_live(home, Slow), options=Options(queue=2)) as (url, service),
        ThreadPoolExecutor(8) as pool,
    ):

        def ask(_: int) -> int:
            with Client(url) as client:
                return client.infer([TEXT]).status

        jobs = [pool.submit(ask, n) for n in range(1)]
        until(lambda: b"redhost_batch_texts_count 1.0" in service.metrics.text())
        jobs += [pool.submit(ask, n) for n in range(2)]
        until(lambda: len(service.batcher) == 2)
        connection = http.client.HTTPConnection(url.removeprefix("http://"))
        connection.request("POST", INFER, json.dumps(REQUEST))
        answer = connection.getresponse()
        assert (answer.status, answer.getheader("Retry-After")) == (503, "1")
        connection.close()
        Slow.go_on.set()
        assert [j.result() for j in jobs] == [200] * 3


def test_a_request_is_refused_where_the_queue_is_bounded_and_only_there() -> None:
    """Control: without a bound everything waits."""
    go_on = threading.Event()

    def predict(texts):
        assert go_on.wait(30)
        return [None] * len(texts)

    async def waiting(queue: int) -> int:
        go_on.clear()
        batcher = Batcher(predict, queue=queue, texts=1)
        jobs = [asyncio.create_task(batcher.ask(["a"])) for _ in range(50)]
        await asyncio.sleep(0.1)
        go_on.set()
        found = await asyncio.gather(*jobs, return_exceptions=True)
        batcher.close()
        return sum(isinstance(x, FullError) for x in found)

    assert asyncio.run(waiting(5)) >= 44
    assert asyncio.run(waiting(10**6)) == 0


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (redhost.UsageError("a text has no tokens", found="'\u200b'"), 400),
        (redhost.MissingError("no generation is served"), 503),
        (redhost.errors.PluginError("plugin 'x' raised"), 503),
        (RuntimeError("shapes"), 503),
        (StopIteration(), 503),
    ],
)
def test_whatever_goes_wrong_is_400_or_503_and_the_next_request_is_answered(
    home, open_live, error, expected
) -> None:
    class Failing(redhost.Live):
        fails = True

        def predict(self, texts, **options):
            if self.fails:
                raise error
            return super().predict(texts, **options)

    live = open_live(home, Failing)
    with running(live) as (url, _), Client(url) as client:
        reply = client.infer([TEXT])
        assert reply.status == expected and "200b" not in repr(reply.body).lower()
        live.fails = False
        assert client.infer([TEXT]).status == 200


def test_what_waits_together_is_answered_together_and_never_split() -> None:
    seen: list[int] = []
    go_on = threading.Event()

    def predict(texts):
        assert go_on.wait(30)
        seen.append(len(texts))
        return [
            redhost.Answer(input=t, label=t, probability=1, weights={}, generation=1) for t in texts
        ]

    async def ask() -> list[list[str]]:
        batcher = Batcher(predict, queue=99, texts=8)
        jobs = [asyncio.create_task(batcher.ask([f"{n}.{i}" for i in range(3)])) for n in range(6)]
        await asyncio.sleep(0.1)
        go_on.set()
        found = [[a.label for a in await job] for job in jobs]
        batcher.close()
        with pytest.raises(FullError):
            await batcher.ask(["late"])
        return found

    assert asyncio.run(ask()) == [[f"{n}.{i}" for i in range(3)] for n in range(6)]
    assert all(n in {3, 6} for n in seen) and 6 in seen


def test_a_request_that_cannot_be_answered_spoils_no_other() -> None:
    def predict(texts):
        if "bad" in texts:
            raise redhost.UsageError("a text has no tokens")
        return [
            redhost.Answer(input=t, label=t, probability=1, weights={}, generation=1) for t in texts
        ]

    async def ask() -> list[Any]:
        batcher = Batcher(predict, queue=9, texts=8, wait=0.1)
        jobs = [batcher.ask([text]) for text in ("one", "bad", "two")]
        found: list[Any] = await asyncio.gather(*jobs, return_exceptions=True)
        batcher.close()
        return found

    one, bad, two = asyncio.run(ask())
    assert (one[0].label, two[0].label) == ("one", "two") and isinstance(bad, redhost.UsageError)
