"""Scores by label, by hand."""

from __future__ import annotations

import pytest

from redhost.core.label_scores import (
    LabelScore,
    count_answers,
    macro_f1,
    score_label_sets,
    score_labels,
)

PAIRS = [("a", "a"), ("a", "a"), ("a", "b"), ("b", "b"), ("b", "c"), ("d", "a")]


def test_the_confusion_table_counts_what_there_is() -> None:
    assert count_answers(PAIRS[::-1]) == {
        "a": {"a": 2, "b": 1},
        "b": {"b": 1, "c": 1},
        "d": {"a": 1},
    }
    assert count_answers([]) == {}


def test_precision_recall_and_f1_are_those_of_the_book() -> None:
    scores = score_labels(count_answers(PAIRS))
    assert list(scores) == ["a", "b", "c", "d"]
    assert scores["a"] == LabelScore(precision=2 / 3, recall=2 / 3, f1=2 / 3, rows=3)
    assert scores["b"] == LabelScore(precision=1 / 2, recall=1 / 2, f1=1 / 2, rows=2)
    assert scores["c"] == LabelScore(precision=0.0, recall=None, f1=0.0, rows=0)
    assert scores["d"] == LabelScore(precision=None, recall=0.0, f1=0.0, rows=1)
    assert macro_f1(scores) == pytest.approx((2 / 3 + 1 / 2 + 0) / 3)  # c is no row's label
    assert macro_f1({}) == 0.0


def test_sets_are_scored_label_by_label() -> None:
    found = score_label_sets([("a|b", "a"), ("a", "a|c"), ("none", "none"), ("b", "none")])
    assert list(found.labels) == ["a", "b", "c"]
    assert found.labels["a"] == LabelScore(precision=1.0, recall=1.0, f1=1.0, rows=2)
    assert found.labels["b"] == LabelScore(precision=None, recall=0.0, f1=0.0, rows=2)
    assert found.labels["c"] == LabelScore(precision=0.0, recall=None, f1=0.0, rows=0)
    assert found.micro_f1 == pytest.approx(2 * 2 / (4 + 3))
    assert macro_f1(found.labels) == pytest.approx(1 / 2)
    assert score_label_sets([("none", "none")]).micro_f1 == 1.0
