"""Whom the texts of the last minute went to: counts alone, as JSON and as events."""

from __future__ import annotations

import http.client
import json
import time
from urllib.parse import urlsplit

import pytest
from redhost_serve.client import Client
from redhost_serve.server import running
from redhost_serve.traffic import WINDOW, LastMinute

import redhost


def answer(*, declined: bool = False, **weights: float) -> redhost.Answer:
    return redhost.Answer(
        input="x", label="y", probability=1.0, weights=weights, generation=1, declined=declined
    )


def test_the_last_minute_is_counted_by_the_largest_weight_and_then_forgotten() -> None:
    now = [0.0]
    traffic = LastMinute(clock=lambda: now[0])
    traffic.answered([answer(a=0.9, b=0.1), answer(a=0.6, b=0.4)], seconds=0.5)
    now[0] = WINDOW / 2
    traffic.answered([answer(a=0.2, b=0.8, declined=True)], seconds=0.2)
    found = traffic.report(1)
    first, second = found.experts
    assert (found.texts, first.expert, second.expert) == (3, "a", "b")
    assert (first.share, second.share) == (pytest.approx(2 / 3), pytest.approx(1 / 3))
    assert first.weight == pytest.approx(1.7 / 3) and second.declined == 1
    assert first.seconds == pytest.approx(0.5) and first.declined == 0
    now[0] = WINDOW + 1
    assert [e.expert for e in traffic.report(1).experts if e.texts] == ["b"]
    now[0] = 2 * WINDOW
    assert traffic.report(1).texts == 0


def test_a_server_tells_it_once_and_as_it_goes_on_and_shows_no_text(home, open_live) -> None:
    with running(open_live(home)) as (url, _), Client(url) as client:
        client.infer(["What is 37 plus 12?"] * 3)
        found = client.get("/v1/traffic").body
        assert found["texts"] == 3 and found["window"] == WINDOW
        assert found["experts"][0]["expert"] == "range3" and found["experts"][0]["share"] == 1
        assert "What is" not in json.dumps(found)
        assert client.get("/v1/traffic?question=nobody").status == 404
        assert client.get("/traffic").status == 200
        watching = http.client.HTTPConnection(urlsplit(url).netloc, timeout=20)
        watching.request("GET", "/v1/traffic/events")
        events = watching.getresponse()
        assert events.getheader("Content-Type").startswith("text/event-stream")
        lines = [events.readline().decode().strip() for _ in range(2)]
        assert lines[0] == "event: traffic"
        assert json.loads(lines[1].removeprefix("data: "))["texts"] == 3
        watching.close()


def test_who_watches_holds_no_server_back(home, open_live) -> None:
    with running(open_live(home)) as (url, _):
        watching = http.client.HTTPConnection(urlsplit(url).netloc, timeout=20)
        watching.request("GET", "/v1/traffic/events")
        events = watching.getresponse()
        assert events.readline() == b"event: traffic\n"
        ends = time.monotonic()
    assert time.monotonic() - ends < 15  # requests under way are waited for, 30 seconds
    watching.close()
