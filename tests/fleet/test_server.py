"""Servers as processes: they follow, try a canary, and lose it when labels say that it is worse."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from redhost_fleet.fleet import Fleet
from redhost_serve.client import Client
from redhost_serve.process import serving

import redhost

SUMS = [(a, b) for a in range(20, 36) for b in (11, 12, 27, 40)]
TEXTS = [f"What is {a} plus {b}?" for a, b in SUMS]


def until(true: Callable[[], bool], *, seconds: float = 20.0) -> float:
    """Wait until something is true; return how long it took."""
    start = time.monotonic()
    while not true():
        assert time.monotonic() - start < seconds
        time.sleep(0.02)
    return time.monotonic() - start


def labelled(fleet: Fleet) -> int:
    counts = [c for r in fleet.reports() for c in r.comparisons.values()]
    return sum(c.better + c.worse + c.same for c in counts)


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("0123456789abcdef0123")
    path.chmod(0o600)
    return path


@pytest.fixture
def pushed(fleet: Fleet, author: redhost.Host) -> Fleet:
    for number in (1, 2, 3):
        fleet.push(author.generations, number)
    fleet.promote(1)
    return fleet


@pytest.fixture
def client(pushed: Fleet, token: Path, tmp_path: Path) -> Iterator[Client]:
    options = ("--follow", pushed.storage.url, "--admin-token", str(token))
    with (
        serving(tmp_path / "replica", *options) as server,
        Client(server.url, token=token.read_text()) as client,
    ):
        yield client


def redhost_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "redhost", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_promotion_is_served_within_two_seconds(pushed, client) -> None:
    assert client.infer(TEXTS[:1]).generation == 1
    for number in (2, 3, 1):
        done = redhost_command("promote", str(number), "--fleet", pushed.storage.url, "--json")
        assert json.loads(done.stdout)["generation"] == number
        client.connection.close()  # idle as long as the command took, so the server may have, too
        assert until(lambda n=number: client.infer(TEXTS[:1]).generation == n) < 2
    follows = client.get("/v1/models").body["data"][0]["follows"]
    assert (follows["state"], follows["generation"], follows["production"]) == ("serving", 1, 4)


def test_a_canary_answers_its_share_and_requests_that_name_it(pushed, client) -> None:
    pushed.promote(2, stage="canary", share=0.5)

    def generation(**headers: str) -> int:
        client.connection.request(
            "POST",
            "/v2/models/redhost/infer",
            json.dumps(
                {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": TEXTS[:1]}]}
            ),
            {name.replace("_", "-"): value for name, value in headers.items()},
        )
        return int(json.loads(client.connection.getresponse().read())["model_version"])

    until(lambda: generation(X_Redhost_Stage="canary") == 2)
    assert generation(X_Redhost_Stage="production") == 1
    by_user = {n: generation(X_Redhost_Key=f"user {n}") for n in range(60)}
    assert 15 <= sum(g == 2 for g in by_user.values()) <= 45
    assert all(generation(X_Redhost_Key=f"user {n}") == g for n, g in by_user.items())
    metrics = client.get("/metrics").body.decode()
    assert 'redhost_generation_texts_total{generation="2"}' in metrics


def test_whose_texts_a_fleet_sees_is_what_the_next_router_expects(
    pushed, client, author, tmp_path
) -> None:
    url, home = pushed.storage.url, str(author.home)
    refused = redhost_command("fleet", "shares", "--fleet", url, "--home", home)
    assert refused.returncode == 3  # no text yet
    for _ in range(4):
        client.infer([f"What is {a} plus {b}?" for a in range(40, 50) for b in range(40, 46)])
    until(lambda: bool(pushed.reports()) and pushed.reports()[0].texts == 240)
    done = redhost_command("fleet", "shares", "--fleet", url, "--home", home, "--json")
    shown = json.loads(done.stdout)
    assert (shown["texts"], shown["generation"]) == (240, 1)
    expected = author.recompose(prior="live", accept=True, dry_run=True).router.shares
    assert max(expected, key=expected.__getitem__) == "range5"


def test_a_mirror_compares_and_its_answers_are_those_of_production(pushed, client) -> None:
    alone = [client.infer([t]).body for t in TEXTS[:8]]
    pushed.promote(3, stage="canary", mirror=True)
    until(lambda: (pushed.reports()[0].trial if pushed.reports() else None) == 3)
    assert [client.infer([t]).body for t in TEXTS[:8]] == alone
    until(lambda: sum(c.texts for c in pushed.reports()[0].comparisons.values()) == 8)
    pushed.promote(2)  # what was counted was beside another production
    until(lambda: (pushed.reports()[0].production, pushed.reports()[0].comparisons) == (2, {}))


def test_labels_end_a_canary_that_is_worse_and_promote_one_that_is_as_good(
    pushed, client, author, tmp_path
) -> None:
    url = pushed.storage.url
    right = [str(a + b) for a, b in SUMS]
    for name in ("range2", "range3", "range4"):
        worse = author.detach(name, accept=True).generation
    pushed.push(author.generations, worse)
    pushed.promote(worse, stage="canary")
    until(lambda: any(r.trial == worse for r in pushed.reports()))
    for _ in range(4):
        scored = client.post("/v1/feedback", {"texts": TEXTS, "labels": right}).body
        assert scored["production"]["right"] > scored["canary"]["right"]
    until(lambda: labelled(pushed) == 4 * len(TEXTS))
    done = redhost_command("fleet", "judge", "--fleet", url, "--json")
    assert json.loads(done.stdout)["action"] == "end"
    ended = pushed.stages["canary"].last()
    assert ended.generation is None and "labelled texts" in ended.why
    assert pushed.stages["production"].last().generation == 1

    pushed.promote(2, stage="canary")
    until(lambda: any(r.trial == 2 for r in pushed.reports()))
    client.connection.close()  # it was idle for long
    for _ in range(10):
        client.post("/v1/feedback", {"texts": TEXTS, "labels": right})
    until(lambda: labelled(pushed) == 10 * len(TEXTS))
    redhost_command("fleet", "judge", "--fleet", url, "--margin", "0.02")
    client.connection.close()
    assert pushed.stages["production"].last().generation == 2
    until(lambda: client.infer(TEXTS[:1]).generation == 2)


def test_labels_without_the_token_count_nothing(pushed, client) -> None:
    client.headers = {}
    assert client.post("/v1/feedback", {"texts": TEXTS[:1], "labels": ["1"]}).status == 401


def test_a_replica_reports_the_address_that_it_is_reached_at(pushed, tmp_path) -> None:
    options = ("--host", "::1", "--follow", pushed.storage.url)
    with serving(tmp_path / "replica", *options) as server:
        assert server.url.startswith("http://[::1]:")
        until(lambda: bool(pushed.reports()))
        assert pushed.reports()[0].url == server.url


def test_a_server_of_a_store_that_is_not_there_waits_for_it(fleet, author, tmp_path) -> None:
    with (
        serving(tmp_path / "replica", "--follow", fleet.storage.url) as server,
        Client(server.url) as client,
    ):
        assert client.get("/v2/health/ready").status == 503
        fleet.push(author.generations, 1)
        fleet.promote(1)
        until(lambda: client.get("/v2/health/ready").status == 200)
        assert client.infer(TEXTS[:1]).generation == 1
