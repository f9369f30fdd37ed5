"""The section `answers` of the bench: which texts are asked, and what its page says."""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import Any

import pytest
from red_lab.bench import page
from red_lab.bench.answers.subject import pick, training_rows
from red_lab.bench.answers.systems import FLOOR, LARGE, SYSTEMS, Case, cases, works
from red_lab.bench.rounds import in_turns_over, percentile, times
from red_lab.newsgroups import TEAMS, lines, rows

import redhost


def ratio(value: float) -> dict[str, float]:
    return {"ratio": value, "low": value, "high": value}


def side(seconds: float, value: float) -> dict[str, Any]:
    spread = {"median": seconds, "low": seconds, "high": seconds}
    return {
        "seconds": spread,
        "p99": 2 * seconds,
        "times": ratio(value),
        "words": ratio(value),
        "rate": 1 / seconds,
    }


@pytest.fixture
def found() -> dict[str, Any]:
    """What a machine might find that meets every aim."""
    waiting = {name: side(0.5, 1.0) for name in SYSTEMS}
    measured = {
        "cases": {
            "1 line": waiting,
            "64 lines": copy.deepcopy(waiting),
            "10,000 lines": {name: side(20.0, 1.0) for name in LARGE},
        },
        "memory": dict.fromkeys(SYSTEMS, 2**30),
        "engines": {
            name: {"posts": 256, "agree": agree, "accuracy": 0.5, "away": away}
            for name, agree, away in (("torch", 1.0, 0.0), ("onnx", 1.0, 1e-6))
        },
        "cold": {
            name: {"seconds": {"median": 2.5}, "times": ratio(0.5)}
            for name in ("transformers", "redhost onnx predict")
        },
    }
    return {
        "threads": 1,
        "max_tokens": 128,
        "peers": {"onnxruntime": "1.0"},
        "processor": "one",
        "backbones": {"minilm": measured},
    }


# -- texts -----------------------------------------------------------------------------------------


@pytest.fixture
def texts_here() -> None:
    try:
        lines()
    except redhost.MissingError:
        pytest.skip("the texts are not installed: make .venv/text")


def test_short_cases_have_many_rounds_and_the_largest_all_its_texts() -> None:
    made = cases(runs=7, texts=10_000, posts=64)
    assert [c.name for c in made] == [
        "1 line",
        "1 post",
        "8 lines",
        "64 lines",
        "64 posts",
        "10,000 lines",
    ]
    assert made[0].rounds >= 100  # or its 99th percentile is its slowest
    assert made[-1].large and made[-1].size * made[-1].rounds == 10_000


def test_no_text_repeats_while_there_are_enough() -> None:
    calls = works(Case(kind="lines", size=3, rounds=4), [str(n) for n in range(15)])
    assert [len(texts) for texts in calls] == [3] * 5
    assert len({text for texts in calls for text in texts}) == 15
    again = works(Case(kind="lines", size=4, rounds=2), list("abcde"))
    assert [list(texts) for texts in again] == [list("abcd"), list("eabc"), list("deab")]


def test_lines_are_real_and_posts_are_those_of_the_training_file(texts_here) -> None:
    all_lines, posts = pick("lines"), pick("posts")
    assert all_lines != lines() and sorted(all_lines) == sorted(lines()) and len(all_lines) > 10_000
    assert all_lines == pick("lines")
    assert set(posts) == {row.text for row in rows("train")}


def test_heads_learn_from_as_many_short_rows_of_every_label(texts_here) -> None:
    made = training_rows(3)
    labels = sorted(label for team in TEAMS.values() for label in team)
    assert sorted(row.label for row in made) == sorted(3 * labels)
    assert max(len(row.text.split()) for row in made) <= 16
    assert len({row.text for row in made}) == len(made)


# -- times -----------------------------------------------------------------------------------------


def test_all_sides_do_the_same_work_in_turns() -> None:
    done: list[str] = []
    sides = {name: lambda work, name=name: done.append(f"{name}{work}") for name in "ab"}
    seconds = in_turns_over(sides, [0, 1, 2])
    assert done == ["a0", "b0", "b1", "a1", "a2", "b2"]
    assert {name: len(values) for name, values in seconds.items()} == {"a": 2, "b": 2}


def test_a_ratio_is_of_pairs_and_a_percentile_was_seen() -> None:
    assert times([2.0, 9.0, 8.0], [1.0, 3.0, 4.0]) == {"ratio": 2.0, "low": 2.0, "high": 2.5}
    assert percentile(range(1, 101), 99) == 99 and percentile([3.0, 1.0, 2.0], 50) == 2.0
    assert percentile([5.0], 99) == 5.0


# -- the page --------------------------------------------------------------------------------------


def test_every_side_and_case_is_on_the_page(found) -> None:
    shown = page("answers", found)
    for name in (
        *SYSTEMS,
        "1 line",
        "64 lines",
        "10,000 lines",
        "1,024",
        "500.0 (1,000.0)",
        "`redhost onnx predict` | 2.50",
    ):
        assert name in shown
    assert "missed" not in shown
    rows_of_tables = [line for line in shown.splitlines() if line.startswith("|")]
    for line, after in pairwise(rows_of_tables):
        assert not after.startswith("|---") or line.count("|") == after.count("|")


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("cases", "1 line", "redhost", "times", "ratio"), 1.16),
        (("cases", "64 lines", "redhost", "times", "ratio"), 1.11),
        (("cases", "10,000 lines", "redhost", "times", "ratio"), 1.06),
        (("cases", "1 line", "redhost", "words", "ratio"), 1.03),
        (("cases", "64 lines", "redhost", "words", "ratio"), 1.03),
        (("cases", "10,000 lines", "redhost", "words", "ratio"), 1.03),
    ],
)
def test_each_aim_can_be_missed(found, place, value) -> None:
    assert "**missed**" not in page("answers", found)
    cell = found["backbones"]["minilm"]
    for key in place[:-1]:
        cell = cell[key]
    cell[place[-1]] = value
    assert page("answers", found).count("**missed**") == 1


def test_the_floor_is_the_first_side_and_many_texts_go_without_it() -> None:
    assert next(iter(SYSTEMS)) == FLOOR and FLOOR not in LARGE and "redhost" in LARGE
