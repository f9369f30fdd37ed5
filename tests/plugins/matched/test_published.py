"""The committed metrics of `redhost lab matched` and the recipes behind it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import redhost_author
from red_lab.matched import RED, STUDY
from red_lab.matched.systems import ARITHMETIC, TEXT

from .conftest import SYSTEMS

RESULTS = Path(__file__).parents[3] / "docs" / "results" / "matched"


def test_the_recipes_are_those_of_the_experiments_they_come_from() -> None:
    text = redhost_author.ExpertSettings()
    for name in ("batch", "learning_rate", "weight_decay", "dropout"):
        assert getattr(TEXT, name) == getattr(text, name)
    assert (ARITHMETIC.epochs, ARITHMETIC.batch, ARITHMETIC.dropout) == (60, 128, 0.0)


@pytest.fixture(scope="module")
def committed() -> dict:
    return json.loads((RESULTS / "metrics.json").read_text("utf-8"))


def test_the_committed_systems_are_of_one_size(committed) -> None:
    assert committed["schema"] == STUDY.schema and list(committed["tasks"]) == [
        "arithmetic",
        "text",
    ]
    for task in committed["tasks"].values():
        assert list(task["systems"]) == SYSTEMS and task["seeds"] == 3
        size = task["systems"][RED]["parameters"]
        for system in task["systems"].values():
            assert system["parameters"] == pytest.approx(size, rel=0.01)
            assert system["accuracy"]["low"] <= system["accuracy"]["mean"]
