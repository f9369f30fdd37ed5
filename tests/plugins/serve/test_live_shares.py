"""Whose texts come in, without labels: near the truth, and nearer than what weights add up to."""

from __future__ import annotations

import pytest
import torch
from redhost_serve.client import Client
from redhost_serve.live_shares import RecentWeights, live_shares
from redhost_serve.server import running

import redhost


def posteriors(shares: torch.Tensor, prior: torch.Tensor, count: int) -> torch.Tensor:
    """Return weights of a router that knows three Gaussians, for texts in other shares."""
    generator = torch.Generator().manual_seed(4)
    means = torch.tensor([[0.0, 0.0], [1.5, 0.0], [0.0, 1.5]])
    owner = torch.multinomial(shares, count, replacement=True, generator=generator)
    z = means[owner] + torch.randn(count, 2, generator=generator)
    return (prior.log() - torch.cdist(z, means).square() / 2).softmax(-1)


@pytest.mark.parametrize("prior", [[1, 1, 1], [6, 3, 1]])
@pytest.mark.parametrize("shares", [[0.8, 0.1, 0.1], [0.1, 0.2, 0.7], [0.34, 0.33, 0.33]])
def test_shares_are_found_whatever_the_cards_were(shares, prior) -> None:
    p, q = torch.tensor(prior) / sum(prior), torch.tensor(shares)
    alpha = posteriors(q, p, 4000)
    found = live_shares(alpha.double(), p.double())
    assert float(found.sum()) == pytest.approx(1)
    assert float((found - q).abs().max()) < 0.05
    if max(shares) > 0.6:  # the weights' mean leans to the cards' shares
        assert float((found - q).abs().max()) < float((alpha.mean(0) - q).abs().max())


def answer(weights: dict[str, float], generation: int) -> redhost.Answer:
    return redhost.Answer(
        input="x", label="y", probability=1.0, weights=weights, generation=generation
    )


def test_another_generation_begins_anew_and_old_texts_are_forgotten() -> None:
    seen = RecentWeights(size=3)
    seen.add([answer({"a": 1.0, "b": 0.0}, 1)] * 5)
    even = {"a": 0.5, "b": 0.5}
    assert seen.estimate(even, generation=1) == ({"a": 1.0, "b": 0.0}, 3)
    assert seen.estimate({"a": 0.5, "c": 0.5}, generation=1) == ({}, 0)
    assert seen.estimate(even, generation=2) == ({}, 0)  # its router never weighed these
    seen.add([answer({"a": 0.0, "b": 1.0}, 2)])
    assert seen.estimate(even, generation=2) == ({"a": 0.0, "b": 1.0}, 1)


def test_the_next_router_expects_what_a_server_saw(home, open_live) -> None:
    texts = [f"What is {a} plus {b}?" for a in range(40, 60) for b in range(40, 52)]
    live = open_live(home)
    with running(live) as (url, service), Client(url) as client:
        for first in range(0, len(texts), 60):
            client.infer(texts[first : first + 60])
        shares, expected, _ = service.shares()
        service.close()
    assert set(expected.values()) == {1 / len(expected)}  # the kind learns from columns alike
    host = redhost.Host.open(home, backbone="tiny", plugins=redhost.plugins.Plugins(()))
    router = host.recompose(prior="live", accept=True).router
    assert router.shares == pytest.approx(shares, abs=0.02)
    with running(open_live(home)) as (url, service), Client(url) as client:
        client.infer(texts[:60])
        found, expected, _ = service.shares()
        assert expected == pytest.approx(router.shares)
        assert max(found, key=found.__getitem__) == max(shares, key=shares.__getitem__)


def test_a_server_shows_whose_texts_come_in(home, open_live) -> None:
    with running(open_live(home)) as (url, service), Client(url) as client:
        assert service.shares()[0] == {}
        client.infer([f"What is {a} plus {b}?" for a in (41, 43, 45) for b in (44, 46, 48)])
        shares, prior, texts = service.shares()
        assert texts == 9 and max(shares, key=shares.__getitem__) == "range5"
        assert sum(prior.values()) == pytest.approx(1) and prior.keys() == shares.keys()
        shown = client.get("/metrics").body.decode()
        assert 'redhost_live_share{expert="range5"}' in shown
        service.live.swap(1)
        assert service.shares()[0] == {}  # until generation 1 has answered
