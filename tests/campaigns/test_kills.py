"""A short run of the kills, and a run on a writer that must fail it."""

from __future__ import annotations

import errno
import json
import os
import re
from itertools import islice
from pathlib import Path

import pytest
import torch
from kills import newcomers
from kills.faults import (
    fault_at_every_step,
    flipped_caches,
    flipped_current,
)
from kills.home import Watched
from kills.report import page
from kills.served import ServedHome, ask_forked, kill_processes

from redhost.core.composition import gates
from redhost.registry import atomic
from redhost.registry.environment import trust
from redhost.registry.home.generations import Generations
from redhost.registry.home.locks import Leases
from redhost.testing import Environment
from redhost.testing.fault_injection import kill_at_every_step, kill_at_random

FAULTS = "full", "read_only", "current", "caches", "loud", "wrecks", "namesake", "byte_code"

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@pytest.fixture
def watched(tmp_path) -> Watched:
    torch.set_num_threads(1)
    home = Watched(tmp_path / "home", "tiny")
    home.prepare()
    return home


def plain(path, data: bytes) -> None:
    atomic.make_folder(path.parent)
    atomic.write_file(path, b"")
    atomic.write_file(path, data)


def test_a_killed_recompose_leaves_a_generation_that_answers(watched: Watched) -> None:
    kills = islice(kill_at_every_step(watched.publish, watched.check), 12)
    assert [k for k in kills if k.problem] == []
    kills = kill_at_random(watched.publish, watched.check, count=8, longest=0.5, seed=0)
    assert [k.problem for k in kills] == [None] * 8


def test_control_that_writes_in_place_is_caught(watched: Watched, monkeypatch) -> None:
    monkeypatch.setattr(atomic, "write_atomic", plain)
    kills = kill_at_every_step(watched.publish, watched.check)
    assert any(k.problem for k in islice(kills, 40))


# -- faults that are no kills ---------------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_a_step_that_cannot_be_written_leaves_a_generation_that_answers(watched, code) -> None:
    found = list(islice(fault_at_every_step(watched, code=code), 3, 30, 5))
    assert len(found) == 6 and [k for k in found if k.problem] == []


def test_a_flipped_bit_of_current_names_no_other_generation(watched, monkeypatch) -> None:
    """Control: a reader that takes whatever number stands first."""
    found = list(flipped_current(watched))
    assert len(found) > 500 and [k for k in found if k.problem] == []

    def first_number(self: Generations) -> int | None:
        found = re.match(rb"[0-9]+", (self.home / "current").read_bytes())
        return int(found[0]) if found else None

    monkeypatch.setattr(Generations, "current", first_number)
    assert any(k.problem for k in islice(flipped_current(watched), 8))


def test_a_flipped_bit_of_a_cache_changes_no_router(watched: Watched) -> None:
    found = list(flipped_caches(watched, count=6, seed=0))
    assert [k.problem for k in found] == [None] * 6


def test_an_expert_thousands_of_times_as_loud_is_refused(watched, tmp_path, monkeypatch) -> None:
    """Control: a host that would allow it."""
    found = list(newcomers.loud_newcomers(watched, tmp_path / "packages"))
    assert [k.problem for k in found] == [None] * 3
    monkeypatch.setattr(gates, "LOUDEST", 10.0**9)
    assert "it was let in" in {
        k.problem for k in newcomers.loud_newcomers(watched, tmp_path / "again")
    }


def test_a_wreck_that_is_installed_stops_nobody(watched, tmp_path, monkeypatch) -> None:
    """Control: a copy that nothing was done to joins, and so the router is another one."""
    found = list(newcomers.wrecks(watched, tmp_path / "sites"))
    assert len(found) == len(newcomers.WRECKS) > 8
    assert [k for k in found if k.problem] == []
    monkeypatch.setattr(newcomers, "WRECKS", {"nothing": lambda package: None})
    [kill] = newcomers.wrecks(watched, tmp_path / "again")
    assert "'wreck'" in str(kill.problem)


def test_a_second_backbone_of_the_same_id_is_not_guessed_about(watched, tmp_path) -> None:
    assert [k.problem for k in newcomers.second_backbone(watched, tmp_path / "site")] == [None]
    with newcomers.installed(tmp_path / "other", "red-backbone-other", "red_backbone_tiny") as p:
        manifest = json.loads((p / "backbone.json").read_bytes())
        (p / "backbone.json").write_text(json.dumps({**manifest, "id": "other"}))
        Environment(p.parent).seal("red-backbone-other")
        assert watched.publish().backbone  # control: of another id, it stands beside


def test_byte_code_that_python_does_not_compare_ends_trust(tmp_path, monkeypatch) -> None:
    """Control: any bytecode is accepted without comparison."""
    found = list(newcomers.changed_plugins(tmp_path / "plugins"))
    assert [k.problem for k in found] == [None] * len(newcomers.BYTE_CODE)
    monkeypatch.setattr(trust, "_is_compared", lambda path: path.suffix == ".pyc")
    found = list(newcomers.changed_plugins(tmp_path / "again"))
    assert [k.problem for k in found] == ["trusted: True"] * 3 + [None]


# -- a server in the middle of swaps ------------------------------------------------------------


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> ServedHome:
    """A home that is made anew after every kill."""
    torch.set_num_threads(1)
    return ServedHome(tmp_path_factory.mktemp("served"), ask_forked)


def test_a_server_killed_mid_swap_leaves_a_generation_that_a_fresh_one_serves(served) -> None:
    found = list(islice(kill_at_every_step(served.swap, served.check), 24))
    assert len(found) == 24 and [k for k in found if k.problem] == []
    found = list(kill_at_random(served.swap_on, served.check, count=3, longest=1.0, seed=0))
    assert [k.problem for k in found] == [None] * 3


def test_redhost_serve_itself_may_be_killed_mid_swap(served) -> None:
    [kill] = kill_processes(served, count=1, longest=0.5, seed=0)
    assert kill.problem is None


def test_a_server_that_moves_current_in_place_is_caught(served, monkeypatch) -> None:
    """Control: `current` is opened for writing, then written."""
    monkeypatch.setattr(atomic, "write_atomic", plain)
    kills = kill_at_every_step(served.swap, served.check)
    assert "cannot read" in next(k.problem for k in islice(kills, 24) if k.problem)


def test_a_lease_that_outlives_its_server_is_caught(served, monkeypatch) -> None:
    """Control of the lock that ends with its process."""
    monkeypatch.setattr(Leases, "_is_live", lambda self, name: True)
    assert "left over after gc" in str(served.check())  # of the server that it asks


def test_a_fresh_server_that_answers_otherwise_is_caught(served, monkeypatch) -> None:
    def other(home: Path) -> tuple[object, ...]:
        number, labels, probabilities, weights = ask_forked(home)
        return number, labels, [p + 1e-9 for p in probabilities], weights

    monkeypatch.setattr(served, "ask", other)
    assert "a fresh server answers" in str(served.check())


def test_the_page_says_what_was_found() -> None:
    found = {"kills": 3, "new_generation_current": 1, "bad": ["after 0.1 s: nothing answers"]}
    none = {"kills": 4, "new_generation_current": 0, "bad": [], "longest": 0.5}
    text = page({"kills": 7, "bad": 1, "steps": found, "random": none})
    assert "**7 kills, 1 bad.**" in text and "| 3 | 1 | 1 |" in text
    parts = {"steps": found, "random": none, "processes": {**none, "kills": 2}}
    faults = dict.fromkeys(FAULTS, none)
    assert "**20 faults, 0 bad.**" in page({"faults": {**faults, "kills": 20, "bad": 0}})
    text = page({"server": {**parts, "kills": 9, "bad": 1}})
    assert "**9 kills, 1 bad.**" in text and "random within 0.50 s of its first swap | 2 |" in text


def test_the_docs_say_what_was_measured() -> None:
    docs = Path(__file__).parents[2] / "docs"
    kills, mutants = (
        json.loads((docs / "results" / name / "metrics.json").read_text())
        for name in ("kills", "mutants")
    )
    assert kills["kills"] >= 500 and mutants["count"] >= 10_000
    server = kills["server"]
    assert server["kills"] >= 150 and server["processes"]["kills"] >= 20
    faults = kills["faults"]
    assert faults["kills"] >= 600 and faults["caches"]["kills"] >= 20
    text = " ".join((docs / "state.md").read_text().split())
    assert f"{server['kills']:,} of a server in the middle of a swap, {server['bad']} bad" in text
    assert f"{faults['kills']:,} full disks, flipped bits and loud experts, {faults['bad']}" in text
    assert f"{kills['kills']:,} kills of a real recompose, {kills['bad']} bad" in text
    assert f"{mutants['count']:,} broken copies of a good expert, {len(mutants['bad'])} cr" in text
