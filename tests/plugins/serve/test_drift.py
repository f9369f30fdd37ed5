"""A server says how far the texts that come in lie from the cards."""

from __future__ import annotations

import dataclasses

from redhost_serve.client import Client
from redhost_serve.drift import RecentMoments
from redhost_serve.server import running

import redhost


def sums(low: int, high: int) -> list[str]:
    return [f"What is {a} plus {b}?" for a in range(low, high) for b in range(low, high)]


def test_texts_from_elsewhere_drift_and_texts_like_the_cards_do_not(home) -> None:
    host = redhost.Host.open(home, plugins=redhost.plugins.Plugins(()))
    model = host.composed

    def drift(texts: list[str]) -> dict[str, float]:
        seen = RecentMoments()
        model.answer(texts, observe=seen.observer(model))
        return {i: d.distance for i, d in seen.drift().items() if d.texts >= 200}

    own, one_kind = drift(sums(1, 50)), drift([f"What is 30 plus {b}?" for b in (12, 13)] * 300)
    assert len(own) >= 3 and max(own.values()) < 0.2
    assert one_kind and min(one_kind.values()) > 0.5


def test_metrics_show_it_and_another_generation_begins_anew(home, open_live) -> None:
    live = open_live(home)
    with running(live) as (url, service), Client(url) as client:
        client.infer(sums(20, 27))
        found = service.drift()
        assert 40 <= sum(d.texts for d in found.values()) <= 49  # the rest is the backbone's
        lines = client.get("/metrics").body.decode().splitlines()
        shown = [line for line in lines if line.startswith("redhost_drift{")]
        assert len(shown) == len(found)
        service.close()


def test_a_generation_made_before_has_no_moments(home) -> None:
    model = redhost.Host.open(home, plugins=redhost.plugins.Plugins(())).composed
    old = dataclasses.replace(model, moments=None)
    assert RecentMoments().observer(old) is None


def test_an_old_generation_goes_though_no_text_has_come_since(home, open_live, until) -> None:
    live = open_live(home)
    with running(live) as (url, service), Client(url) as client:
        client.infer(sums(20, 24))
        old = live.generation
        assert service.drift()
        service.change(lambda: live.swap(1 if old != 1 else 2))
        until(lambda: live.alive() == (live.generation,))
        assert service.drift() == {}
        service.close()
