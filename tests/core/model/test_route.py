"""Selection alone: names and weights, and no expert read, built or run for them."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import redhost
from redhost import MissingError, UsageError
from redhost.errors import StoreError
from redhost.registry.errors import InputTypeError

TEXTS = ["red 61 b", "green 62 c", "blue 63 f", "nothing 4"]


def open_host(home: Path) -> redhost.Host:
    return redhost.Host.open(home, backbone="toy")


def forget_experts(host: redhost.Host) -> None:
    """Take every byte of every expert out of the store."""
    for digest in host.generations.load(1).members().values():
        shutil.rmtree(host.home / "store" / digest)


@pytest.mark.parametrize(
    "kind", ["ridge", "statistics", "quadratic:temperature=4", "topk:k=1", "linear"]
)
def test_weights_are_those_of_the_answers_without_a_byte_of_an_expert(
    installed, home, kind
) -> None:
    host = open_host(home)
    host.recompose(router=kind, accept=True)
    answers = host.predict(TEXTS)
    forget_experts(host)
    alone = open_host(home)
    routes = alone.route(TEXTS)
    assert [r.weights for r in routes] == [a.weights for a in answers]  # the very same bits
    assert [r.input for r in routes] == TEXTS and {r.generation for r in routes} == {1}
    assert all(r.weights[r.expert] == max(r.weights.values()) for r in routes)
    with pytest.raises(StoreError):  # control that does read them
        alone.predict(TEXTS)


def test_it_follows_the_generation(installed, home) -> None:
    host = open_host(home)
    host.recompose(router="ridge")
    assert host.route(TEXTS[0])[0].expert == "red"
    host.detach("red", accept=True)
    [route] = host.route(TEXTS[0])
    assert route.generation == 2 and "red" not in route.weights
    assert redhost.Live(host.session).route(TEXTS[0]) == [route]


def test_one_text_or_any_iterable_is_routed_and_nothing_else(installed, home) -> None:
    host = open_host(home)
    with pytest.raises(MissingError):
        host.route(TEXTS)
    host.recompose(router="ridge")
    one, many = host.route(TEXTS[0]), host.route(TEXTS)
    assert one == many[:1] and host.route([]) == []
    assert host.route(np.array(TEXTS)) == many == host.route(iter(TEXTS))
    with pytest.raises(InputTypeError):
        host.route([3])  # type: ignore[list-item]
    longest = host.composed.backbone.trunk.longest
    assert [r.cut for r in host.route([TEXTS[0], "7 " * 2000])] == [None, longest]


@pytest.mark.parametrize("kind", ["evidence", "shortlist", "attention"])
def test_a_router_that_needs_experts_is_refused_by_name(installed, home, kind) -> None:
    host = open_host(home)
    host.recompose(router=kind, accept=True)
    with pytest.raises(UsageError, match=f"found {kind}.*--router ridge"):
        host.route(TEXTS)
    with pytest.raises(UsageError, match=f"found {kind}"):
        host.composed.chooser.route(TEXTS)
