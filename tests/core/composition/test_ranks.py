"""One package at several ranks: a host serves the first units, pays for them, and says so."""

from __future__ import annotations

import json

import pytest
import torch

import redhost
from redhost.registry.errors import UnknownNameError, UsageError
from redhost.registry.queries.inventory import take_status

RANKS = (2, 4, 8)
TEXTS = ["red 61 b", "green 62 c", "blue 63 f"]


@pytest.fixture(scope="module")
def nested(build_expert, tmp_path_factory):
    """The expert of texts about red, trained at three ranks."""
    settings = redhost.authoring.ExpertSettings(ranks=RANKS, epochs=60, learning_rate=1e-2)
    return build_expert(tmp_path_factory.mktemp("nested"), "red", settings=settings)


@pytest.fixture
def host(environment, backbone_folder, expert_folders, nested, home) -> redhost.Host:
    for folder in (backbone_folder, nested, expert_folders["green"], expert_folders["blue"]):
        environment.install(folder.parents[1])
    host = redhost.Host.open(home, backbone="toy")
    host.recompose(router="linear")
    return host


def record(host):
    return host.generations.load(host.generations.current())


def rank_of(host, expert_id: str = "red") -> int:
    bus = redhost.Host.open(host.home, backbone="toy").composed.bus
    return low_rank(bus.experts[bus.ids.index(expert_id)]).U.shape[0]


def low_rank(expert) -> redhost.plugins.LowRank:
    assert isinstance(expert, redhost.plugins.LowRank)
    return expert


def test_a_smaller_rank_is_served_recorded_and_stays_until_another_is_given(host) -> None:
    before = record(host)
    assert before.ranks() == {} and rank_of(host) == 8
    receipt = host.recompose(ranks={"red": 2}, accept=True)
    after = record(host)
    assert receipt.ranks == after.ranks() == {"red": 2} and rank_of(host) == 2
    assert after.members() == before.members()  # the package is what it was
    assert take_status(host.home).ranks == {"red": 2}
    assert {x.id: x.served for x in host.list_experts() if x.id in {"red", "blue"}} == {
        "red": 2,
        "blue": 8,
    }
    assert host.recompose(accept=True).ranks == {"red": 2}
    assert host.detach("blue", accept=True).ranks == {"red": 2}
    assert host.recompose(ranks={"red": 8}, accept=True).ranks == {}
    assert rank_of(host) == 8 and record(host).experts == before.experts


def test_a_host_reopened_answers_as_the_one_that_composed(host) -> None:
    host.recompose(ranks={"red": 4}, accept=True)
    again = redhost.Host.open(host.home, backbone="toy")
    assert again.predict(TEXTS, each=True) == host.predict(TEXTS, each=True)


def test_the_lock_holds_the_rank_and_is_followed(host) -> None:
    host.recompose(ranks={"red": 4}, accept=True)
    lock = json.loads((host.home / "redhost.lock").read_bytes())
    assert lock["experts"]["red"]["rank"] == 4 and "rank" not in lock["experts"]["blue"]
    assert host.recompose(locked=True, dry_run=True).ranks == {"red": 4}
    with pytest.raises(UsageError):
        host.recompose(locked=True, dry_run=True, ranks={"red": 2})


def test_another_rank_is_another_expert_to_a_router_that_moves_single_rows(host) -> None:
    host.recompose(ranks={"red": 4}, router="linear", accept=True)
    receipt = host.recompose(ranks={"red": 2}, level="row", router="linear", accept=True)
    assert receipt.router.moved == ("red",)


@pytest.mark.parametrize(
    ("ranks", "error"),
    [({"red": 3}, UsageError), ({"blue": 4}, UsageError), ({"violet": 2}, UnknownNameError)],
)
def test_a_rank_that_is_not_there_is_refused_and_nothing_changes(host, ranks, error) -> None:
    with pytest.raises(error):
        host.recompose(ranks=ranks)
    assert host.generations.current() == 1


def test_a_new_build_without_the_rank_is_refused_until_one_is_given(host, expert_folders) -> None:
    host.recompose(ranks={"red": 2}, accept=True)
    with pytest.raises(UsageError):
        host.replace("red", expert_folders["red"], accept=True)
    receipt = host.replace("red", expert_folders["red"], accept=True, ranks={"red": 8})
    assert receipt.ranks == {}


def test_composed_in_memory_it_computes_the_first_units(backbone_folder, nested) -> None:
    whole, cut = (
        redhost.compose(
            backbone_folder,
            [nested],
            options=redhost.RecomposeOptions(router="linear", ranks=ranks),
        )
        for ranks in ({}, {"red": 2})
    )
    [one], [two] = (map(low_rank, x.composed.bus.experts) for x in (whole, cut))
    torch.testing.assert_close(two.U, one.U[:2])
    torch.testing.assert_close(two.V, one.V[:, :2])
