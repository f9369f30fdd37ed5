"""A server leaves what is revoked within a poll, says why, and answers 503 if nothing is left."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from redhost_serve.client import Client
from redhost_serve.process import serving
from redhost_serve.recall import Recall
from redhost_serve.server import running

import redhost
from redhost.plugins import Generations
from redhost.registry.home.revoked import Revocation, Revocations, RevokedList

TEXT = "What is 37 plus 12?"
POLL = 0.5


def revoke(home: Path, *digests: str, serial: int = 1) -> None:
    entries = tuple(
        Revocation(digest=d, reason="leaks rows", revoked_at="2026-11-28") for d in digests
    )
    lists = {"key": RevokedList(serial=serial, entries=entries)}
    Generations(home).store.write_revocations(Revocations(lists=lists))


def until(true: Callable[[], bool], *, seconds: float) -> float:
    start = time.monotonic()
    while not true():
        assert time.monotonic() - start < seconds
        time.sleep(0.02)
    return time.monotonic() - start


@pytest.fixture
def newest(home: Path) -> str:
    """Generation 4 has an expert that the others lack; its digest."""
    host = redhost.Host.open(home, plugins=redhost.plugins.Plugins(()))
    host.detach("range2", accept=True)
    host.attach("range2", accept=True)
    records = {n: host.generations.load(n).members() for n in (4, 5)}
    assert "range2" not in records[4]
    return records[5]["range2"]


def models(client: Client) -> dict[str, Any]:
    return client.get("/v1/models").body["data"][0]


def test_a_process_goes_back_and_answers_503_when_nothing_is_left(home, newest) -> None:
    with serving(home) as server, Client(server.url) as client:
        assert client.infer([TEXT]).generation == 5
        assert models(client)["recalled"] is None
        revoke(home, newest)
        until(lambda: client.infer([TEXT]).generation == 4, seconds=POLL + 2)
        assert Generations(home).current() == 4  # after a restart the same one
        left = models(client)["recalled"]
        assert left["generation"] == 5 and "'range2'" in left["reason"]
        assert "leaks rows" in left["reason"]

        revoke(home, newest, Generations(home).load(4).backbone.digest)
        until(lambda: client.get("/v2/health/ready").status == 503, seconds=POLL + 2)
        refused = client.post(
            "/v2/models/redhost/infer",
            {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": [TEXT]}]},
        )
        assert refused.status == 503
        assert "'tiny'" in refused.body["error"] and "leaks rows" in refused.body["error"]

        (home / "revoked.json").write_bytes(b'{"schema')  # unknown is not nothing
        time.sleep(2 * POLL)
        assert client.get("/v2/health/ready").status == 503
        revoke(home)
        until(lambda: client.get("/v2/health/ready").status == 200, seconds=POLL + 2)
        assert client.infer([TEXT]).generation == 4


def test_it_starts_with_the_newest_generation_that_may_answer(
    home, newest, open_live, caplog
) -> None:
    revoke(home, newest)
    live = open_live(home)
    assert live.generation is None
    with running(live) as (url, service), Client(url) as client:
        Recall(service).look()  # as `redhost serve` does before its first request
        assert "generation 5 left, 4 is served" in caplog.text and "None" not in caplog.text
        assert client.infer([TEXT]).generation == 4
        assert models(client)["recalled"]["generation"] == 5


def test_it_says_whose_experts_change_with_the_revoked_one(home, open_live) -> None:
    host = redhost.Host.open(home, plugins=redhost.plugins.Plugins(()))
    for change in (host.detach, host.attach):
        for name in ("range2", "range1"):
            change(name, accept=True)
    revoke(home, host.generations.load(7).members()["range2"])
    live = open_live(home)
    with running(live) as (url, service), Client(url) as client:
        Recall(service).look()
        assert live.generation == 5
        version = next(m.version for m in host.generations.load(7).experts if m.id == "range1")
        left = models(client)["recalled"]
        assert left["generation"] == 7
        assert left["reason"].endswith(f"; with it: range1 ({version} → absent)")


def test_a_damaged_file_changes_nothing_that_is_served(home, open_live) -> None:
    live = open_live(home)
    with running(live) as (url, service), Client(url) as client:
        guard = Recall(service)
        guard.look()
        (home / "revoked.json").write_bytes(b"{")
        guard.look()
        assert client.infer([TEXT]).generation == 3
        with pytest.raises(redhost.errors.StoreError, match=r"revoked\.json"):
            live.swap(2)
        assert client.infer([TEXT]).generation == 3


def test_a_change_under_way_is_waited_for(home, newest, open_live) -> None:
    live = open_live(home)
    with running(live) as (_, service):
        guard = Recall(service)
        revoke(home, newest)
        with live._alone(None):
            guard.look()
        assert live.generation == 5
        guard.look()
        assert live.generation == 4


def test_a_revoked_generation_is_not_swapped_to(home, newest, open_live) -> None:
    live = open_live(home)
    live.swap(4)
    revoke(home, newest)
    with pytest.raises(redhost.errors.ContractError, match="'range2'"):
        live.swap(5)
    assert live.generation == 4 == Generations(home).current()


def test_with_no_whole_generation_left_it_serves_none_and_says_why(home, newest, open_live) -> None:
    live = open_live(home)
    path = home / "generations" / "4" / "router.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    revoke(home, newest)
    # 1 to 3 have the very build of range2 that 5 has: only 4 lacks it.
    refusal = live.recall()
    assert refusal is not None and live.generation is None
    with pytest.raises(redhost.errors.ContractError, match="leaks rows"):
        live.predict([TEXT])


def test_left_with_none_it_serves_what_is_composed_without_what_is_revoked(
    home, newest, open_live
) -> None:
    path = home / "generations" / "4" / "router.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    live = open_live(home)
    with running(live) as (url, service), Client(url) as client:
        guard = Recall(service)
        revoke(home, newest)
        guard.look()
        assert client.get("/v2/health/ready").status == 503
        host = redhost.Host.open(home, plugins=redhost.plugins.Plugins(()))
        host.detach("range2", accept=True)
        guard.look()
        assert client.infer([TEXT]).generation == 6
        assert models(client)["recalled"] is None
