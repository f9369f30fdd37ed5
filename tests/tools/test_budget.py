"""The code base keeps its budget, and a figure beyond its limit fails."""

from __future__ import annotations

from pathlib import Path

import house
import pytest
from house_calls import compose

BUDGET = house.read_budget(house.BUDGET.read_text("utf-8"))


def test_what_stands_in_files_keeps_the_budget():
    assert house.broken(house.text_figures(), BUDGET) == []


def test_names_for_users_and_options_of_commands_keep_the_budget():
    assert house.broken(house.public_names(), BUDGET) == []


@pytest.fixture(scope="module")
def composed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compose(tmp_path_factory.mktemp("composed") / "home")


@pytest.mark.parametrize("command", house.WALKS)
def test_the_functions_that_a_command_enters_keep_the_budget(command: str, composed: Path):
    figures = house.walk_figures({command: house.walk(command, composed=composed)})
    assert figures[f"functions entered: {command}"] > 50  # it was traced
    assert house.broken(figures, BUDGET) == []


TEXT = """
[text]
"files: core" = { most = 10, goal = 5 }
"comments" = { least = 1.5, goal = 4 }
"""


def test_figures_beyond_their_limits_and_without_one_are_named():
    budget = house.read_budget(TEXT)
    assert house.broken({"files: core": 10, "comments": 1.5}, budget) == []
    assert house.broken({"files: core": 11, "comments": 1.4, "lines": 3}, budget) == [
        "lines: no limit in budget.toml",
        "files: core: 11, at most 10",
        "comments: 1.4, at least 1.5",
    ]


def test_limits_follow_better_figures_and_never_worse_ones():
    better = house.lowered(TEXT, {"files: core": 8, "comments": 2})
    assert 'core" = { most = 8, goal = 5 }' in better
    assert 'comments" = { least = 2, goal = 4 }' in better
    assert house.lowered(better, {"files: core": 9, "comments": 1.9}) == better
