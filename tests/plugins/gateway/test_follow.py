"""A gateway follows its home and a fleet's store, and goes on where it cannot."""

from __future__ import annotations

from typing import Any

import httpx2
from redhost_fleet.fleet import Fleet
from redhost_gateway.follow import production_of

import redhost

TEXT = "What is 37 plus 12?"


def generation(url: str) -> str | None:
    body = {"model": "auto", "prompt": TEXT}
    return httpx2.post(f"{url}/v1/completions", json=body).headers.get("x-redhost-generation")


def test_the_homes_current_generation_is_followed(home, upstream, gateway_of, until) -> None:
    host = redhost.Host.open(home, plugins=redhost.plugins.Plugins(()))
    url, gateway = gateway_of(home, upstream[0])
    assert generation(url) == "3"
    host.rollback(2)
    until(lambda: generation(url) == "2")
    until(lambda: not gateway._leaving)  # nobody uses 3 any more
    host.rollback(1)  # whose router asks experts
    until(lambda: "evidence" in gateway.trouble)
    assert generation(url) == "2"
    host.rollback(3)
    until(lambda: generation(url) == "3")
    assert gateway.trouble == ""


def test_a_generation_is_held_while_it_chooses(home, upstream, gateway_of) -> None:
    host = redhost.Host.open(home, plugins=redhost.plugins.Plugins(()))
    gateway_of(home, upstream[0])
    host.rollback(1)
    host.generations.gc(1)
    assert 3 in host.generations.numbers() and 2 not in host.generations.numbers()


def test_before_anything_is_composed_names_pass(tmp_path, upstream, gateway_of, until) -> None:
    url, _ = gateway_of(tmp_path / "empty", upstream[0])
    body: dict[str, Any] = {"model": "auto", "prompt": TEXT}
    answer = httpx2.post(f"{url}/v1/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "nothing_composed")
    answer = httpx2.post(f"{url}/v1/completions", json={**body, "model": "x"})
    assert answer.json()["model"] == "x"
    assert httpx2.get(f"{url}/health/ready").status_code == 503


def test_a_fleets_production_is_followed(home, tmp_path, upstream, gateway_of, until) -> None:
    author = redhost.Host.open(home, plugins=redhost.plugins.Plugins(()))
    fleet = Fleet(str(tmp_path / "store"))
    for number in (2, 3):
        fleet.push(author.generations, number)
    fleet.promote(2)
    here = redhost.Host.open(tmp_path / "here", plugins=redhost.plugins.Plugins(()))
    production = production_of(here, str(tmp_path / "store"))
    url, _ = gateway_of(tmp_path / "here", upstream[0], production=production)
    assert generation(url) == "2"
    fleet.promote(3)
    until(lambda: generation(url) == "3")
    (tmp_path / "store").rename(tmp_path / "gone")
    assert generation(url) == "3"
