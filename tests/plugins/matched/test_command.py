"""`redhost lab matched` as a command: resumed, repeatable, one page."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from click.testing import CliRunner
from red_lab.matched import STUDY, TRAININGS, matched
from red_lab.matched.data import Problem, arithmetic, load
from red_lab.matched.measure import choose, measure
from red_lab.newsgroups import TEAMS, owner
from red_lab.red import queries
from red_lab.red.base import BaseSettings
from red_lab.red.measure import Plan
from redhost_author.training.data import DataSplits

import redhost
from redhost.testing import tiny_backbone

from .conftest import SHORT, SYSTEMS, WIDTH, made_up, no_progress


def test_the_same_seed_twice_measures_the_same_but_for_seconds(problem) -> None:
    ticks: list[str] = []
    one, two = (measure(problem, recipe=SHORT, seed=1, tick=ticks.append) for _ in range(2))
    for metrics in (one, two):
        for system in metrics["systems"].values():
            assert system.pop("seconds") >= 0
    assert one == two
    assert len(ticks) == 2 * TRAININGS * SHORT.epochs
    other = measure(problem, recipe=SHORT, seed=2, tick=no_progress)
    assert other["systems"] != one["systems"]


def test_epochs_are_chosen_on_validation_rows_and_remembered(tmp_path) -> None:
    problem, opened = made_up("text"), []

    def blind() -> Problem:
        opened.append(1)
        return dataclasses.replace(problem, test=problem.test.some(0))

    choices = [
        choose(
            blind,
            recipe=SHORT,
            file=tmp_path / "epochs.json",
            shown=lambda *_: no_progress,
            epochs=(1, 6),
        )
        for _ in range(2)
    ]
    assert choices[0] == choices[1] and len(opened) == 1 and choices[0]["epochs"] == 6
    assert choices[0]["rows"] == len(problem.valid)
    assert list(choices[0]["valid"]["6"]) == SYSTEMS[:-1]


def tiny_load(name: str, *, seed: int, work: Path) -> Problem:
    return made_up(name, seed=seed if name == "arithmetic" else 0)


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr("red_lab.matched.data.load", tiny_load)
    monkeypatch.setattr("red_lab.matched.systems.ARITHMETIC", SHORT)
    monkeypatch.setattr("red_lab.matched.systems.TEXT", SHORT)
    monkeypatch.setattr("red_lab.matched.measure.choose.__kwdefaults__", {"epochs": (1, 2)})


def without_seconds(metrics: dict) -> dict:
    for task in metrics["tasks"].values():
        for system in task["systems"].values():
            del system["seconds"]
    return metrics


def test_the_command_resumes_and_writes_a_page_of_its_metrics_alone(
    tmp_path, tiny, monkeypatch
) -> None:
    written, figures = [], []
    for name in ("one", "two"):
        out, work = tmp_path / name, tmp_path / f"{name}-work"
        given = ["--out", str(out), "--work", str(work), "--seeds", "1"]
        for task in ("text", "arithmetic"):
            result = CliRunner().invoke(matched, [*given, "--part", task], catch_exceptions=False)
            assert result.exit_code == 0
        metrics = json.loads((out / "metrics.json").read_text("utf-8"))
        assert (out / "README.md").read_text("utf-8") == STUDY.page(metrics)
        figures.append((out / "systems.svg").read_bytes())
        written.append(without_seconds(metrics))
    assert written[0] == written[1] and written[0]["schema"] == STUDY.schema
    assert list(written[0]["tasks"]) == ["arithmetic", "text"]
    monkeypatch.setattr("red_lab.matched.measure.measure", None)  # measuring again would raise
    before = (tmp_path / "one" / "metrics.json").read_bytes()
    given = ["--out", str(tmp_path / "one"), "--work", str(tmp_path / "one-work"), "--seeds", "1"]
    assert CliRunner().invoke(matched, given, catch_exceptions=False).exit_code == 0
    assert (tmp_path / "one" / "metrics.json").read_bytes() == before
    assert (tmp_path / "one" / "systems.svg").read_bytes() == figures[0]


def test_arithmetic_is_read_as_lab_red_reads_it(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(queries, "SIZES", (300, 60, 60))
    model = tiny_backbone(tmp_path / "model")
    plan = Plan(
        task="addition",
        protocol="seed",
        backbone=f"hf:{model}",
        seeds=1,
        base=BaseSettings(last_blocks=1, epochs=1),
    )
    problem = arithmetic(tmp_path, seed=0, plan=plan)
    data = queries.load("addition", "seed", seed=0)
    assert [len(p) for p in (problem.train, problem.valid, problem.test)] == [300, 60, 60]
    assert problem.labels == queries.LABELS
    assert [problem.labels[int(y)] for y in problem.test.target] == [q.label for q in data.test]
    assert [problem.domains[int(k)] for k in problem.train.owner] == [q.domain for q in data.train]
    firsts = [0, *itertools.accumulate(len(y) for y in problem.labels_of)]
    inside = [
        firsts[k] <= y < firsts[k + 1]
        for k, y in zip(problem.train.owner.tolist(), problem.train.target.tolist(), strict=True)
    ]
    assert all(inside)
    assert len(problem.train.distinct()) == len({q.text for q in data.train})
    assert problem.clusters == tuple(f"0 {q.cluster}" for q in data.test)


def test_texts_are_learnt_from_but_for_validation_and_labels_stand_by_team(monkeypatch) -> None:
    """Every author's rows of all parts, in the order of teams; no row is learnt and judged."""

    def rows(part: str) -> tuple[redhost.Row, ...]:
        return tuple(redhost.Row(text=f"{part} {y}", label=y) for t in TEAMS for y in TEAMS[t])

    parts = {
        t: DataSplits(
            **{
                k: tuple(r for r in rows(k) if r.label in TEAMS[t])
                for k in ("train", "valid", "fit", "gate")
            }
        )
        for t in TEAMS
    }
    seen: list[str] = []

    def encode(texts) -> torch.Tensor:
        seen.extend(texts)
        return torch.randn(len(texts), WIDTH, generator=torch.Generator().manual_seed(0))

    backbone = SimpleNamespace(width=WIDTH, eps=1e-5)
    desk = SimpleNamespace(
        context=SimpleNamespace(backbone=backbone, encode=encode), parts=parts, test=rows("test")
    )
    monkeypatch.setattr("red_lab.matched.data.open_desk", lambda *_, **__: desk)
    problem = load("text", seed=0, work=Path())
    assert [len(p) for p in (problem.train, problem.valid, problem.test)] == [60, 20, 20]
    assert len(set(seen)) == len(seen) == 100 and problem.classifier is None
    assert problem.domains == tuple(sorted(TEAMS)) and len(set(problem.labels)) == 20
    for part, texts in ((problem.train, seen[:60]), (problem.test, seen[80:])):
        labels = [problem.labels[int(y)] for y in part.target]
        assert labels == [t.partition(" ")[2] for t in texts]
        assert [problem.domains[int(k)] for k in part.owner] == [owner(y) for y in labels]
