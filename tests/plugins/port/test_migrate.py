"""migrate: a composition moves to another backbone in a real environment, or nothing changes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from redhost_author import (
    ExpertSettings,
    open_for_training,
    split_rows,
    train_package,
    write_project,
)
from redhost_author.backbone.making import BackbonePlan, new_backbone
from redhost_author.project import ExpertPlan, write_plan
from redhost_author.wheels import build_wheel
from redhost_port.migrate import Migrated
from safetensors.torch import load_file, save_file
from warm_start import warm_command

import redhost
from redhost.registry.wheel.wheel import open_wheel
from redhost.testing import Environment

TINY = Path("plugins/red-backbone-tiny/src/red_backbone_tiny").resolve()
QUESTION = "What is 41 plus 2?"
SHIPPED = [word for n in range(1, 6) for word in ("--without", f"range{n}")]


def sums() -> Iterator[tuple[int, int]]:
    yield from ((a, b) for a in range(1, 51, 2) for b in range(1, 51, 2))


def rows(name: str) -> list[redhost.Row]:
    """Return sums, each with how large it is; or differences, each with where it begins."""
    if name == "size":
        labels = {(a, b): "small" if a + b <= 50 else "large" for a, b in sums()}
        return [redhost.Row(text=f"What is {a} plus {b}?", label=y) for (a, b), y in labels.items()]
    return [
        redhost.Row(text=f"What is {a} minus {b}?", label="low" if a <= 25 else "high")
        for a, b in sums()
    ]


def wheel(name: str, folder: Path, *, cards: str) -> str:
    """Train an expert on the tiny backbone and build its wheel."""
    project, plan = folder / name, ExpertPlan(id=name, backbone="tiny", form="linear", card=cards)
    write_project(project, kind="expert", package_id=name, summary=name)
    write_plan(project, plan)
    context = open_for_training(TINY, cache=folder / "cache")
    settings = ExpertSettings(space="labels", epochs=30)
    train_package(project, plan, split_rows(rows(name)), context=context, settings=settings)
    return str(build_wheel(project, folder))


def successor(name: str, folder: Path, *, seed: int) -> Path:
    """Write a next version of the tiny backbone: every matrix moved a little."""
    model, generator = folder / f"model-{name}", torch.Generator().manual_seed(seed)
    model.mkdir()
    for file in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (model / file).write_bytes((TINY / file).read_bytes())
    weights = load_file(TINY / "model.safetensors")
    for tensor, w in weights.items():
        if w.dim() > 1:
            weights[tensor] = w + 0.05 * w.std() * torch.randn(w.shape, generator=generator)
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    project = folder / f"red-backbone-{name}"
    new_backbone(project, BackbonePlan(id=name, source=f"hf:{model}"))
    return project


def written(path: Path) -> str:
    """Write rows that nobody trained on, of where differences begin."""
    numbers = [(a, b) for a in range(2, 51, 2) for b in range(2, 51, 2)]
    rows = [
        {"text": f"What is {a} minus {b}?", "label": "low" if a <= 25 else "high"}
        for a, b in numbers
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_a_composition_moves_whole_or_not_at_all(make_venv: Any, tmp_path: Path) -> None:
    venv, home = make_venv(tmp_path / "venv"), tmp_path / "home"
    size = wheel("size", tmp_path, cards="texts")
    start = wheel("start", tmp_path, cards="vectors")  # nothing in its card can be read anew
    for seed, name in enumerate(("successor", "second")):
        Environment(venv.site).install(successor(name, tmp_path, seed=seed))
    labelled = written(tmp_path / "rows.jsonl")
    to, out = ("migrate", "--to", "successor", "--json"), str(tmp_path / "ports")
    given = ("--rows", labelled, "--tolerance", "5", "--out", out, "--json")
    first, second, refused, unknown, moved, answers, listed, status, again, *back = venv.session(
        ("add", size, "--backbone", "tiny", "--accept"),
        ("add", start, "--accept", "--json"),
        (*to, *SHIPPED),
        (*to, *SHIPPED, "--without", "sise"),
        (*to, *SHIPPED, *given),
        ("predict", QUESTION, "--json"),
        ("list-experts", "--json"),
        ("status", "--json"),
        ("migrate", "--to", "second", *given),
        ("rollback", "2", "--json"),
        ("predict", QUESTION, "--json"),
        home=home,
    )
    assert (first[0], second[0]) == (0, 0), (first, second)
    # One that cannot be carried over keeps all where they are, and is named.
    assert refused[0] == 1 and "start" in refused[2] and "--rows" in refused[2]
    assert unknown[0] == 2
    assert moved[0] == 0, moved[2]
    report = json.loads(moved[1])
    assert msgspec.to_builtins(msgspec.convert(report, Migrated)).keys() == report.keys()
    assert (report["old"], report["new"]) == ("tiny", "successor")
    assert {r["id"] for r in report["ported"]} == {"size", "start"}
    assert all(r["share"] >= 0.95 for r in report["ported"])
    assert report["receipt"]["parent"] == json.loads(second[1])["receipt"]["generation"]
    assert report["receipt"]["ported"].keys() == {"size", "start"}
    assert {*map(Path, report["wheels"])} < {*(tmp_path / "ports").iterdir()}
    states = {x["id"]: x for x in json.loads(listed[1])}
    assert states["size"]["state"] == "attached" and "+" in states["size"]["version"]
    assert json.loads(status[1])["drift"] == []
    # The next one is ported to from what their authors built: maps are not put on maps.
    assert again[0] == 0, again[2]
    receipts = [json.loads(x[1])["receipt"] for x in (moved, again)]
    assert receipts[0]["ported"] == receipts[1]["ported"]
    # The generation before needs nothing that is installed.
    assert set(json.loads(back[0][1])["experts"]) == {"size", "start", *SHIPPED[1::2]}
    assert json.loads(answers[1])[0]["label"] == "small"
    assert "range1" in json.loads(back[1][1])[0]["weights"]


KILLED = """
import sys
from redhost.cli import main
from redhost.testing import kill_at

with kill_at(at=int(sys.argv[1]), moment=sys.argv[2]) as calls:
    try:
        main(sys.argv[3:])
    finally:
        print("steps", len(calls), file=sys.stderr)
"""


class Killed:
    """A composition of one expert that is to be migrated, as often as it is killed."""

    def __init__(self, venv: Any, folder: Path) -> None:
        self.venv, self.folder, self.home = venv, folder, folder / "home"
        Environment(venv.site).install(successor("successor", folder, seed=0))
        [added] = self.session(("add", self.built(), "--backbone", "tiny", "--accept"))
        assert added[0] == 0, added
        for part in (self.home, venv.site):
            shutil.copytree(part, folder / "before" / part.name, symlinks=True)
        given = ("--tolerance", "5", "--out", str(folder / "ports"))
        self.command = ("migrate", "--to", "successor", *SHIPPED, *given)

    def built(self) -> str:
        return wheel("size", self.folder, cards="texts")

    def session(self, *commands: tuple[str, ...]) -> list[tuple[int, str, str]]:
        done: list[tuple[int, str, str]] = self.venv.session(*commands, home=self.home)
        return done

    def start(self, *before: str) -> subprocess.Popen[str]:
        code = ["-c", KILLED, *before] if before else ["-m", "redhost"]
        return subprocess.Popen(
            warm_command(*code, *self.command, python=self.venv.python),
            cwd=self.venv.folder,
            env={**os.environ, "OMP_NUM_THREADS": "1", "REDHOST_HOME": str(self.home)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # so that pip is killed with it
        )

    def restore(self) -> None:
        for part in (self.home, self.venv.site):
            shutil.rmtree(part)
            shutil.copytree(self.folder / "before" / part.name, part, symlinks=True)
        shutil.rmtree(self.folder / "ports", ignore_errors=True)

    def check(self) -> None:
        """Check that the old or the new generation answers, and that a migration still can."""
        answered, status, listed, again = self.session(
            ("predict", QUESTION, "--json"),
            ("status", "--json"),
            ("list-experts", "--json"),
            self.command,
        )
        while "installation was cut short" in again[2]:  # pip was killed
            place = again[2].partition("files of no distribution, at ")[2].partition(". ")[0]
            for left in [Path(place)] if place else [*self.venv.site.glob("~*")]:
                shutil.rmtree(left)
            [again] = self.session(self.command)
        if "only files that RECORD lists" in again[2]:  # pip was killed as it wrote RECORD
            for left in self.venv.site.glob("*.dist-info/RECORD*.tmp"):
                left.unlink()
            [again] = self.session(self.command)
        [after] = self.session(("predict", QUESTION, "--json"))
        assert (answered[0], status[0], listed[0]) == (0, 0, 0), (answered, status, listed)
        [first], [last] = json.loads(answered[1]), json.loads(after[1])
        assert (first["generation"], first["label"]) in {(1, "43"), (2, "small")}
        assert again[0] == 0 or "composed on red-backbone-successor already" in again[2], again
        assert (last["generation"], last["label"]) == (2, "small")
        for built in (self.folder / "ports").glob("*.whl"):
            assert open_wheel(built).package.dist == "red-expert-size"


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")
def test_a_killed_migration_leaves_a_home_that_answers_and_can_migrate(
    make_venv: Any, tmp_path: Path
) -> None:
    moved = Killed(make_venv(tmp_path / "venv"), tmp_path)
    whole = moved.start("1000000", "before")
    _, err = whole.communicate(timeout=300)
    assert whole.returncode == 0, err
    steps = int(err.split("steps ")[1].split()[0])
    moments = ("before", "within", "after")
    places = (1, steps // 2, steps)  # its first, one in the middle, its last
    for step, moment in zip(places, moments, strict=True):
        moved.restore()
        process = moved.start(str(step), moment)
        process.communicate(timeout=300)
        assert process.returncode == -signal.SIGKILL
        moved.check()
    moved.restore()
    before = {*moved.venv.site.iterdir()}
    process = moved.start()
    while {*moved.venv.site.iterdir()} == before and process.poll() is None:
        time.sleep(0.001)
    os.killpg(process.pid, signal.SIGKILL)  # while pip installs
    process.communicate(timeout=300)
    assert process.returncode == -signal.SIGKILL
    moved.check()
