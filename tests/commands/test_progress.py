"""Long work says what is under way: a bar for each stage, or a line now and then."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.progress import Progress

from redhost.commands.progress import Stages, say


@pytest.fixture
def bars() -> Progress:
    return Progress(console=Console(file=io.StringIO(), force_terminal=True))


def test_every_stage_has_a_bar_and_none_falls_back_to_nothing(bars: Progress) -> None:
    stages = Stages("train-expert", bars)
    seen: dict[str, list[float]] = {}

    def note() -> None:
        for task in bars.tasks:
            seen.setdefault(task.description, []).append(task.percentage)

    for rows in (100, 20, 60):  # training rows, validation rows, the background
        for done in range(10, rows + 1, 10):
            stages.stage("features")(done, rows)
            note()
    for epoch in range(1, 6):
        stages.stage("epochs", f"validation accuracy 0.{epoch}")(epoch, 5)
        note()
    assert list(seen) == ["features", "epochs"]
    assert [(t.completed, t.total) for t in bars.tasks] == [(180, 180), (5, 5)]
    assert min(seen["features"]) >= 10 and seen["features"][-1] == seen["epochs"][-1] == 100
    drops = [a - b for a, b in zip(seen["features"], seen["features"][1:], strict=False)]
    assert max(drops) < 35  # more to do, never nothing done
    assert bars.tasks[1].fields["note"].endswith(" s to go, validation accuracy 0.5")


def test_a_stage_says_how_fast_it_goes_and_when_it_ends(monkeypatch) -> None:
    now = 100.0
    monkeypatch.setattr("redhost.commands.progress.time.monotonic", lambda: now)
    stages = Stages("train-expert")
    first = stages.stage("features")
    now = 104.0
    first(100, 300)
    assert str(stages.current) == "features 100 of 300, 25 a second, 8 s to go"
    again = stages.stage("features")  # what came before says nothing of this pass
    now = 106.0
    again(100, 150)
    assert str(stages.current) == "features 200 of 250, 50 a second, 1 s to go"


def test_a_stage_of_nothing_is_no_full_bar(bars: Progress) -> None:
    stages = Stages("recompose", bars)
    stages.stage("features")(0, 0)
    stages(0, 0)
    assert bars.tasks == [] and stages.current is None


def test_without_a_terminal_a_line_says_where_it_is(capsys) -> None:
    printed = ""
    with say("train-expert", every=0.01) as progress:
        progress.stage("features")(1024, 9000)
        progress.stage("epochs", "validation accuracy 0.913")(12, 200)
        while "epochs" not in printed:
            printed += capsys.readouterr().err
    line = next(x for x in printed.splitlines() if "epochs" in x)
    assert line.startswith("train-expert: epochs 12 of 200, ")
    assert " a second, " in line and " s to go, validation accuracy 0.913, " in line
    printed = ""
    with say("merge", every=0.01):
        while not printed:
            printed += capsys.readouterr().err
    assert printed.startswith("merge: 0 s") and capsys.readouterr().out == ""


def test_short_work_says_nothing(capsys) -> None:
    with say("check") as progress:
        progress(1, 2)
    assert capsys.readouterr().err == ""
