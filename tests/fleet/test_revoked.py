"""What is revoked is handed to every replica through the store, and none serves it any more."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from redhost_fleet.fleet import Fleet
from redhost_fleet.follower import Follower
from redhost_serve.client import Client
from redhost_serve.process import serving

import redhost
from redhost.registry.home.revoked import Revocation, Revocations, RevokedList

TEXT = "What is 37 plus 12?"
REPLICAS = 4


def revoke(host: redhost.Host, *digests: str, serial: int = 1, key: str = "key") -> None:
    entries = tuple(
        Revocation(digest=d, reason="leaks rows", revoked_at="2026-11-28") for d in digests
    )
    store = host.generations.store
    known = store.revocations()
    lists = {**known.lists, key: RevokedList(serial=serial, entries=entries)}
    store.write_revocations(Revocations(lists=lists, allowed=known.allowed))


def until(true: Callable[[], bool], *, seconds: float = 20.0) -> float:
    start = time.monotonic()
    while not true():
        assert time.monotonic() - start < seconds
        time.sleep(0.02)
    return time.monotonic() - start


@pytest.fixture
def bad(fleet: Fleet, author: redhost.Host) -> str:
    """Generation 4 lacks range2 and 5 has it; both are pushed, and 5 is served; its digest."""
    author.detach("range2", accept=True)
    author.attach("range2", accept=True)
    for number in (4, 5):
        fleet.push(author.generations, number)
        fleet.promote(number)
    return author.generations.load(5).members()["range2"]


def command(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "redhost", *arguments], capture_output=True, check=True)


@pytest.mark.parametrize("store", ["folder"], indirect=True)
def test_four_servers_go_back_within_a_poll_and_come_again(fleet, author, bad, tmp_path) -> None:
    with contextlib.ExitStack() as stack:
        clients = []
        for n in range(REPLICAS):
            home = tmp_path / f"replica{n}"
            server = stack.enter_context(serving(home, "--follow", fleet.storage.url))
            clients.append(stack.enter_context(Client(server.url)))
        assert [c.infer([TEXT]).generation for c in clients] == [5] * REPLICAS

        def all_serve(number: int) -> bool:
            return all(c.infer([TEXT]).generation == number for c in clients)

        revoke(author, bad)
        command("fleet", "revoke", "--fleet", fleet.storage.url, "--home", str(author.home))
        for client in clients:
            client.connection.close()
        assert until(lambda: all_serve(4)) < 5
        until(lambda: [r.state for r in fleet.reports()] == ["behind"] * REPLICAS)
        assert all("leaks rows" in r.reason for r in fleet.reports())
        shown = [c.get("/v1/models").body["data"][0]["follows"]["reason"] for c in clients]
        assert all("leaks rows" in reason for reason in shown)

        base = author.generations.load(5).backbone.digest
        revoke(author, bad, base, serial=2)
        fleet.push_revoked(author.generations)
        until(lambda: all(c.get("/v2/health/ready").status == 503 for c in clients))
        body = {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": [TEXT]}]}
        refused = [c.post("/v2/models/redhost/infer", body) for c in clients]
        assert [r.status for r in refused] == [503] * REPLICAS
        assert all("leaks rows" in r.body["error"] for r in refused)

        revoke(author, serial=3)  # a later list lifts both
        fleet.push_revoked(author.generations)
        until(lambda: all(c.get("/v2/health/ready").status == 200 for c in clients))
        until(lambda: all_serve(5))


def test_a_new_replica_brings_the_last_generation_that_may_answer(
    fleet, author, bad, open_live, tmp_path
) -> None:
    revoke(author, bad)
    fleet.push_revoked(author.generations)
    live = open_live(tmp_path / "replica")
    follower = Follower(live, fleet, where="a")
    follower.look()
    assert live.generation == 4 and live.host.generations.numbers() == (4,)
    assert follower.latest.state == "behind" and "leaks rows" in follower.latest.reason


def test_a_home_that_is_behind_takes_nothing_back(fleet, author, bad, open_host, tmp_path) -> None:
    revoke(author, bad, serial=2)
    assert fleet.push_revoked(author.generations)
    behind = open_host(tmp_path / "behind")
    revoke(behind, serial=1)
    revoke(behind, "0" * 64, key="another")
    assert fleet.push_revoked(behind.generations)
    reader = open_host(tmp_path / "reader")
    fleet.pull_revoked(reader.generations)
    assert reader.store.revoked().keys() == {bad, "0" * 64}
    assert not fleet.push_revoked(reader.generations)


def test_a_revoked_generation_is_not_pushed(fleet, author, bad) -> None:
    revoke(author, bad)
    with pytest.raises(redhost.errors.ContractError, match="'range2'"):
        fleet.push(author.generations, 5)
    fleet.push(author.generations, 4)


def test_a_revoked_generation_is_not_promoted(fleet, author, bad) -> None:
    """Who promotes need not have a home: the store has the list."""
    before = fleet.stages["production"].sequences()
    revoke(author, bad)
    fleet.push_revoked(author.generations)
    for stage in ("production", "canary"):
        with pytest.raises(redhost.errors.ContractError, match="leaks rows") as e:
            fleet.promote(5, stage=stage)
        assert bad[:12] in str(e.value) and "\n" not in str(e.value)
    assert fleet.stages["production"].sequences() == before
    fleet.promote(4)
    author.generations.store.write_revocations(
        Revocations(lists=author.generations.store.revocations().lists, allowed=(bad,))
    )
    fleet.push_revoked(author.generations)
    fleet.promote(5)


@pytest.mark.parametrize("data", [b"", b"{", b'{"schema": "redhost.revocations/2"}'])
def test_a_damaged_list_of_the_store_is_reported_and_changes_nothing(
    fleet, author, bad, open_live, tmp_path, data
) -> None:
    revoke(author, bad)
    fleet.push_revoked(author.generations)
    live = open_live(tmp_path / "replica")
    follower = Follower(live, fleet, where="a")
    follower.look()
    fleet.storage.write("revoked.json", data)
    follower.look()
    assert live.generation == 4 and live.host.store.revoked().keys() == {bad}
    assert "revoked.json" in follower.latest.reason


def test_without_the_store_a_replica_still_leaves_what_its_home_knows(
    fleet, author, bad, open_live, tmp_path
) -> None:
    live = open_live(tmp_path / "replica")
    follower = Follower(live, fleet, where="a")
    fleet.pull(live.host.generations, 4)
    follower.look()
    assert live.generation == 5
    revoke(live.host, bad)
    follower.fleet = Fleet(str(tmp_path / "away"))
    follower.look()
    assert live.generation == 4
    assert "leaks rows" in follower.latest.reason


def test_a_canary_ends_that_is_revoked(fleet, author, bad, open_live, tmp_path) -> None:
    trials: list[object] = []
    fleet.promote(4)
    fleet.promote(5, stage="canary")
    live = open_live(tmp_path / "replica")
    follower = Follower(live, fleet, where="a", trial=lambda _, model, __: trials.append(model))
    follower.look()
    assert trials[-1] is not None and follower.latest.trial == 5
    revoke(author, bad)
    fleet.push_revoked(author.generations)
    follower.look()
    assert trials[-1] is None and follower.latest.trial is None
    assert live.generation == 4 and "leaks rows" in follower.latest.refused
    revoke(author, serial=2)
    fleet.push_revoked(author.generations)
    follower.look()
    assert follower.latest.trial == 5 and follower.latest.refused == ""


def test_control_a_replica_of_a_store_without_a_list_serves_it(
    fleet, bad, open_live, tmp_path
) -> None:
    live = open_live(tmp_path / "replica")
    Follower(live, fleet, where="a").look()
    assert live.generation == 5
    assert not Path(live.host.home / "revoked.json").exists()
