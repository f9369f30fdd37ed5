"""The commands of a fleet as people type them: what they refuse, and what they leave alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner, Result
from redhost_fleet import cli
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
