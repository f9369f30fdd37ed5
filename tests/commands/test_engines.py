"""--engine and --workers: the same output from all of them, and Ctrl-C loses nothing finished."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redhost_author
import torch
from redhost_author.project import write_plan
from warm_start import warm_command

import redhost
from redhost.core.types import write_rows

DOCS = Path(__file__).parents[2] / "docs" / "engines.md"


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """A command with workers computes with one thread itself: so does what it is compared with."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    """Return a plan of three experts for the backbone that ships; the last has one label only."""
    lines = []
    for name, labels in (("sun", 2), ("moon", 2), ("star", 1)):
        project = redhost_author.write_project(
            tmp_path / name, kind="expert", package_id=name, summary=name
        )
        write_plan(project.parents[1], redhost_author.ExpertPlan(id=name, backbone="tiny", rank=4))
        rows = [redhost.Row(text=f"{name} {n}", label=f"{n % labels}") for n in range(60)]
        (tmp_path / f"{name}.jsonl").write_bytes(write_rows(rows))
        lines.append({"dir": name, "data": f"{name}.jsonl", "epochs": 2})
    path = tmp_path / "plan.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_train_many_tells_of_each_and_fails_for_one(plan, call, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("REDHOST_HOME", str(tmp_path / "home"))
    code, out, _ = call("train-many", str(plan), "--json")
    printed = {Path(x["dir"]).name: x for x in json.loads(out)}
    assert code == 1 and list(printed) == ["sun", "moon", "star"]
    assert printed["sun"]["error"] is None and printed["sun"]["manifest"]["id"] == "sun"
    assert printed["star"]["manifest"] is None and "one label only" in printed["star"]["error"]
    code, out, _ = call("train-many", str(plan))
    assert code == 1 and "sun: expert 'sun', accuracy train" in out
    assert "star: failed: " in out
    assert call("check", str(tmp_path / "sun"))[0] == 0


@pytest.mark.parametrize("command", [("check",), ("evaluate",), ("recompose",), ("train-many",)])
def test_an_unknown_engine_is_a_line_with_those_there_are(plan, home, call, command) -> None:
    more = (str(plan),) if command == ("train-many",) else ()
    code, _, err = call(*command, *more, "--engine", "locl")
    assert code == 2
    assert err.startswith(
        "redhost: unknown engine 'locl'. Did you mean 'local'? Known: local, ray."
    )


def test_check_says_the_same_with_two_workers(home, call, tmp_path) -> None:
    alone = call("check", "--json")
    assert call("check", "--json", "--workers", "2") == alone and alone[0] == 0
    [*retained] = (home / "cache" / "jobs").iterdir()
    assert len(retained) == 5


def test_evaluate_and_recompose_say_the_same_with_two_workers(home, call, tmp_path) -> None:
    fresh = str(tmp_path / "fresh")
    printed = [json.loads(call("recompose", "--json", "--home", fresh, "--workers", "2")[1])]
    printed += [json.loads(call("recompose", "--json", "--home", f"{fresh}-one")[1])]
    assert printed[0]["router"]["digest"] == printed[1]["router"]["digest"]
    alone = call("evaluate", "--json", "--home", f"{fresh}-one")
    assert call("evaluate", "--json", "--home", fresh, "--workers", "2") == alone


def test_the_engine_of_the_docs_runs(environment, home, call) -> None:
    [code] = re.findall(r"```python\n(import redhost\n.*?)```", DOCS.read_text(), flags=re.DOTALL)
    environment.install_code("here", {"__init__.py": code}, {"redhost.plugins": "h = here"})
    assert call("trust", "here")[0] == 0
    assert call("check", "--json", "--engine", "here") == call("check", "--json")
    assert len(list((home / "cache" / "jobs").iterdir())) == 5


def test_ctrl_c_keeps_what_is_finished(plan, tmp_path) -> None:
    lines = [json.loads(line) for line in plan.read_text().splitlines()[:2]]
    plan.write_text("".join(json.dumps(line) + "\n" for line in lines))
    # So many rows that only to encode them takes many times as long as the other expert as a whole.
    rows = [redhost.Row(text=f"{n}", label=f"{n * n % 97}") for n in range(100_000)]
    (tmp_path / "moon.jsonl").write_bytes(write_rows(rows))
    command = warm_command("-m", "redhost", "train-many", str(plan), "--workers", "2")
    home = tmp_path / "home"
    with subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        env={**os.environ, "REDHOST_HOME": str(home)},
        text=True,
    ) as running:
        done = tmp_path / "sun" / "src" / "red_expert_sun" / "expert.json"
        end = time.monotonic() + 120
        while not done.exists() and running.poll() is None and time.monotonic() < end:
            time.sleep(0.05)
        assert running.poll() is None
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate(timeout=60)
    assert running.returncode == 130
    assert errors.strip() == "redhost: stopped; the same command goes on where it stopped"
    assert done.exists() and len(list((home / "cache" / "jobs").iterdir())) == 1
    assert not (tmp_path / "moon" / "src" / "red_expert_moon" / "expert.json").exists()
