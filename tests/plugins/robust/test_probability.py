"""Rows of probabilities: every error names its row."""

from __future__ import annotations

import numpy as np
import pytest
from redhost_robust.errors import GameError
from redhost_robust.probability import probability_rows, probability_vector

from redhost.registry.errors import UsageError


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "rows: expected at least one row, found none"),
        (3, "rows: expected a list of rows, found int"),
        ("text", "rows: expected a list of rows, found str"),
        (b"bytes", "rows: expected a list of rows, found bytes"),
        ({"a": [1.0]}, "rows: expected a list of rows, found dict"),
        ([[1.0], []], "rows[1]: expected a flat list of probabilities, found an empty one"),
        ([[1.0], [[1.0]]], "rows[1]: expected a flat list of probabilities, found shape (1, 1)"),
        ([[1.0], 1.0], "rows[1]: expected a flat list of probabilities, found shape ()"),
        (
            [[0.5, 0.5], [1.0]],
            "rows[1]: expected 2 probabilities as in rows[0], found 1. "
            "All rows are over one alphabet: write 0 for what a row never emits.",
        ),
        ([[0.5, 0.5], [1.5, -0.5]], "rows[1]: expected numbers ≥ 0, found -0.5 at position 1"),
        (
            [[0.5, 0.4]],
            "rows[0]: expected a sum of 1 within 1e-09, found 0.9. Divide the row by its sum.",
        ),
        ([[float("nan"), 1.0]], "rows[0]: expected finite numbers, found nan at position 0"),
        ([[1.0, float("inf")]], "rows[0]: expected finite numbers, found inf at position 1"),
        ([[10**400]], "rows[0]: expected finite numbers, found one too large to hold"),
    ],
)
def test_what_is_wrong_is_named(rows: object, message: str) -> None:
    with pytest.raises(GameError) as caught:
        probability_rows("rows", rows)
    assert str(caught.value) == message


@pytest.mark.parametrize("row", [["x"], [{}], [[0.5], [0.5, 0.5]]])
def test_what_is_no_number_is_reported_in_numpys_words(row: object) -> None:
    with pytest.raises(GameError, match=r"^rows\[0\]: expected a flat list of numbers, found \w+"):
        probability_rows("rows", [row])


def test_the_error_is_a_value_error_and_a_usage_error() -> None:
    with pytest.raises(ValueError, match="at least one row") as caught:
        probability_rows("rows", [])
    assert isinstance(caught.value, UsageError)


def test_a_sum_within_the_tolerance_becomes_exactly_1() -> None:
    row = probability_vector("row", [0.5, 0.5 + 9e-10])
    assert abs(row.sum() - 1) < 1e-15
    with pytest.raises(GameError, match="a sum of 1"):
        probability_vector("row", [0.5, 0.5 + 2e-9])


def test_what_is_too_small_to_invert_is_0() -> None:
    assert probability_vector("row", [1.0, 1e-310]).tolist() == [1.0, 0.0]
    assert probability_vector("row", [1.0, 1e-200]).tolist() == [1.0, 1e-200]


def test_rows_are_copied_and_read_only() -> None:
    given = np.array([[0.5, 0.5]])
    rows = probability_rows("rows", given)
    given[0, 0] = 7
    assert rows[0, 0] == 0.5
    with pytest.raises(ValueError, match="read-only"):
        rows[0, 0] = 7
