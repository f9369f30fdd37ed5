"""A short run of the kills, and a run on a writer that must fail it."""

from __future__ import annotations

import json
import os
from itertools import islice
from pathlib import Path

import pytest
import torch
from red_lab.kills.home import Watched
from red_lab.kills.report import write_page

from redhost.registry import atomic
from redhost.testing import kill_at_every_step, kill_at_random

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


def test_the_twin_that_writes_in_place_is_caught(watched: Watched, monkeypatch) -> None:
    monkeypatch.setattr(atomic, "write_atomic", plain)
    kills = kill_at_every_step(watched.publish, watched.check)
    assert any(k.problem for k in islice(kills, 40))


def test_the_page_says_what_was_found(tmp_path) -> None:
    found = {"kills": 3, "new_generation_current": 1, "bad": ["after 0.1 s: nothing answers"]}
    none = {"kills": 4, "new_generation_current": 0, "bad": [], "longest": 0.5}
    write_page({"kills": 7, "bad": 1, "steps": found, "random": none}, tmp_path / "p.md")
    page = (tmp_path / "p.md").read_text()
    assert "**7 kills, 1 bad.**" in page and "| 3 | 1 | 1 |" in page


def test_the_docs_say_what_was_measured() -> None:
    docs = Path(__file__).parents[2] / "docs"
    kills, mutants = (
        json.loads((docs / "results" / name / "metrics.json").read_text())
        for name in ("kills", "mutants")
    )
    assert kills["kills"] >= 500 and mutants["count"] >= 10_000
    said = " ".join((docs / "state.md").read_text().split())
    assert f"{kills['kills']:,} kills of a real recompose, {kills['bad']} bad" in said
    assert f"{mutants['count']:,} broken copies of a good expert, {len(mutants['bad'])} cr" in said
