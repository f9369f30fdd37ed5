"""The commands of a fleet as people type them: what they refuse, and what they leave alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner, Result
from redhost_fleet import cli, rollout
from redhost_fleet.fleet import Fleet

import redhost


def run(command: Any, *arguments: str) -> Result:
    return CliRunner().invoke(command, arguments)


@pytest.fixture
def pushed(fleet: Fleet, author: redhost.Host) -> Fleet:
    """A store with generations 1, 2 and 3; production has served 1 and then 2."""
    for number in (1, 2, 3):
        fleet.push(author.generations, number)
    for number in (1, 2):
        fleet.promote(number)
    return fleet


@pytest.fixture
def overtaken(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return what has somebody else promote a generation just before the command does."""

    def call(number: int) -> None:
        promote, others = Fleet.promote, [number]

        def late(self: Fleet, *given: Any, **options: Any) -> Any:
            while others:
                promote(self, others.pop(), why="somebody else")
            return promote(self, *given, **options)

        monkeypatch.setattr(Fleet, "promote", late)

    return call


def test_who_is_overtaken_at_the_first_entry_learns_by_whom(fleet, author, overtaken) -> None:
    for number in (1, 2):
        fleet.push(author.generations, number)
    overtaken(2)
    done = run(cli.promote, "1", "--fleet", fleet.storage.url)
    assert isinstance(done.exception, redhost.errors.StaleGenerationError)
    assert "generation 2" in done.exception.found
    assert fleet.stages["production"].sequences() == [1]


@pytest.mark.parametrize(
    ("command", "arguments"),
    [(cli.promote, ("1", "--expect", "2")), (cli.promote, ("1",)), (cli.fleet, ("rollback",))],
)
def test_who_is_overtaken_moves_nothing_and_learns_by_whom(
    pushed, overtaken, command, arguments
) -> None:
    overtaken(3)
    done = run(command, *arguments, "--fleet", pushed.storage.url)
    assert isinstance(done.exception, redhost.errors.StaleGenerationError)
    assert "generation 3" in done.exception.found
    assert pushed.stages["production"].last().why == "somebody else"


@pytest.mark.parametrize(
    "command",
    [
        (cli.promote, "1"),
        (cli.pull,),
        (cli.fleet, "end-canary"),
        (cli.fleet, "rollback"),
        (cli.fleet, "judge"),
        (cli.fleet, "status"),
        (cli.fleet, "history"),
        (cli.fleet, "gc"),
    ],
    ids=lambda command: command[-1] if len(command) > 1 else command[0].name,
)
def test_a_mistyped_store_is_refused_and_nothing_is_written(
    monkeypatch, tmp_path, open_host, command
) -> None:
    monkeypatch.setenv("REDHOST_FLEET", str(tmp_path / "typo"))
    monkeypatch.setenv("REDHOST_HOME", str(tmp_path / "home"))
    done = run(*command)
    assert isinstance(done.exception, redhost.errors.StoreError)
    assert "there is no store of a fleet" in done.exception.problem
    assert not (tmp_path / "typo").exists()


def test_a_judge_that_cannot_look_says_why_and_goes_on(pushed, monkeypatch) -> None:
    pushed.promote(3, stage="canary")
    rounds = iter((None, redhost.errors.StoreError("the disk is gone"), None, KeyboardInterrupt()))
    judge = rollout.judge

    def look(fleet: Fleet, limits: rollout.Limits) -> Any:
        if (wrong := next(rounds)) is not None:
            raise wrong
        return judge(fleet, limits)

    monkeypatch.setattr(rollout, "judge", look)
    done = run(cli.fleet, "judge", "--every", "0.1", "--fleet", pushed.storage.url)
    assert done.stdout.count("hold:") == 1 and "no canary" not in done.stdout
    assert done.stderr.splitlines()[0] == "the disk is gone"


def test_a_question_without_a_generation_is_named_with_what_composes_it(tmp_path) -> None:
    home = ("--home", str(tmp_path / "home"), "--question", "mood")
    done = run(cli.push, str(tmp_path / "store"), *home)
    assert isinstance(done.exception, redhost.MissingError)
    assert "question 'mood' is not composed" in done.exception.problem
    assert done.exception.hint == f"Run 'redhost recompose {' '.join(home)}'."
