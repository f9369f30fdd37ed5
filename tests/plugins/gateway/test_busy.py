"""An upstream that has too much to do, beside one that has not."""

from __future__ import annotations

import time
from collections.abc import Iterator
from email.utils import formatdate
from typing import Any

import httpx2
import pytest
from redhost_gateway.faulty_upstream import FaultyUpstream
from redhost_gateway.settings import Limits, UpstreamSettings
from redhost_gateway.upstream import Upstream, pick

TEXT = "What is 37 plus 12?"
BODY = {"model": "auto", "prompt": TEXT}


@pytest.fixture
def two(listening) -> Iterator[list[tuple[str, FaultyUpstream]]]:
    """Two servers with the same models, and their states."""
    states = [FaultyUpstream(), FaultyUpstream()]
    for state in states:
        state.adapters["range3"] = "weights"
    with listening(states[0]) as first, listening(states[1]) as second:
        yield [(first, states[0]), (second, states[1])]


def ask(url: str, **fields: Any) -> httpx2.Response:
    return httpx2.post(f"{url}/v1/completions", json={**BODY, **fields}, timeout=30)


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("model", ["auto", "range3"])
@pytest.mark.parametrize("stream", [False, True])
def test_another_upstream_answers_for_one_that_is_busy(
    composed_home, two, gateway_of, until, status, model, stream
) -> None:
    (busy, first), (free, second) = two
    first.busy = status, "600"
    url, gateway = gateway_of(composed_home, busy, free)
    for _ in range(3):
        answer = ask(url, model=model, stream=stream)
        assert answer.status_code == 200 and "busy" not in answer.text
    assert (len(first.seen), len(second.seen)) == (1, 3)  # it is asked again after its pause
    until(lambda: all(u.in_flight == 0 for u in gateway.upstreams))
    gateway.upstreams[0].paused = time.monotonic()
    gateway.upstreams[1].in_flight += 1
    first.busy = None
    assert ask(url, model=model).status_code == 200 and len(first.seen) == 2


def test_when_all_are_busy_the_last_ones_answer_passes(
    composed_home, two, gateway_of, until
) -> None:
    for (_, state), refusal in zip(two, ((429, "7"), (503, "9")), strict=True):
        state.busy = refusal
    url, gateway = gateway_of(composed_home, *(address for address, _ in two))
    answer = ask(url)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "9")
    assert answer.json() == {"error": {"message": "busy", "code": 503}}
    assert answer.headers["x-redhost-expert"] == "range3"
    assert [len(state.seen) for _, state in two] == [1, 1]
    assert ask(url).headers["retry-after"] == "9"  # the first one's pause ends first
    until(lambda: all(u.in_flight == 0 for u in gateway.upstreams))


def test_one_without_the_model_gets_no_request(composed_home, two, gateway_of) -> None:
    (busy, first), (other, second) = two
    first.busy = 429, "0"
    del second.adapters["range3"]
    url, gateway = gateway_of(composed_home, busy, other)
    assert ask(url).status_code == 429 and not second.seen
    url, gateway = gateway_of(composed_home, busy, other, limits={"retries": 0})
    second.adapters["range3"] = "weights"
    assert ask(url).status_code == 429 and not second.seen
    gateway.upstreams[1].healthy = False
    assert ask(url).status_code == 429


def test_a_refusal_passes_if_the_other_one_does_not_answer(
    composed_home, two, gateway_of, until
) -> None:
    (busy, first), (other, second) = two
    first.busy = 429, "3"
    url, gateway = gateway_of(composed_home, busy, other)
    answer = ask(url, behave="drop")
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "3")
    assert (len(first.seen), len(second.seen)) == (1, 1)
    until(lambda: all(u.in_flight == 0 for u in gateway.upstreams))


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_an_expert_that_can_be_loaded_is_there(speaking_home, listening, gateway_of, kind) -> None:
    states = [FaultyUpstream(any_model=False), FaultyUpstream(any_model=False)]
    with listening(states[0]) as first, listening(states[1]) as second:
        url, _ = gateway_of(speaking_home, first, second, loads=kind)
        states[0].busy = 429, "60"
        assert ask(url, model="code").status_code == 200


def test_how_long_a_pause_is() -> None:
    upstream = Upstream(UpstreamSettings(url="http://x"), limits=Limits())
    for value, least, most in (
        ("30", 29, 30),
        (" 0 ", 0, 0),
        (formatdate(time.time() + 100, usegmt=True), 90, 100),
        (formatdate(time.time() - 100, usegmt=True), 0, 0),
        ("soon", 0, 0),
        ("-5", 0, 0),
        ("nan", 0, 0),
        ("999999999", 3595, 3600),
        (formatdate(time.time() + 1e7, usegmt=True), 3595, 3600),
    ):
        upstream.pause([(b"Retry-After", value.encode())])
        assert least - 5 <= upstream.paused - time.monotonic() <= most, value
    upstream.pause([])
    assert upstream.paused <= time.monotonic()


def test_a_pause_counts_less_than_a_model_that_is_missing() -> None:
    paused, lacking, silent = (
        Upstream(UpstreamSettings(url=f"http://{n}"), limits=Limits()) for n in range(3)
    )
    paused.listed, lacking.listed = ({"id": "a"},), ({"id": "b"},)
    assert pick([paused, lacking, silent], "a", []) is paused
    paused.pause([(b"retry-after", b"60")])
    assert pick([paused, lacking], "a", []) is paused
    assert pick([paused, lacking, silent], "a", []) is silent
    assert not lacking.may_have("a", chosen=False) and silent.may_have("a", chosen=False)
