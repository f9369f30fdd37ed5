"""Spans as text: written, read, and refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redhost_spans.label_spans import Span, join_spans, label_of, read_spans, split_spans

TEXT = "Ada Lovelace wrote to Babbage."

SPANS = st.lists(
    st.builds(
        Span,
        st.integers(0, 40),
        st.integers(0, 40),
        st.text(min_size=1, max_size=6) | st.sampled_from(["none", "a|b", "\\", "a\\|"]),
    ),
    max_size=4,
)


@given(SPANS)
def test_what_is_written_is_read_again(spans) -> None:
    assert set(split_spans(join_spans(spans))) == set(spans)


def test_no_spans_are_none() -> None:
    assert join_spans([]) == "none" and split_spans("none") == ()


@pytest.mark.parametrize(
    "cell",
    [
        [[22, 29, "person"], [0, 12, "person"]],
        [{"start": 0, "end": 12, "label": "person"}, {"start": 22, "end": 29, "label": "person"}],
        '[[0, 12, "person"], [22, 29, "person"]]',
        "0:12:person|22:29:person",
        " 22:29:person | 0:12:person ",
    ],
)
def test_a_row_s_spans_are_read_however_they_are_written(cell) -> None:
    assert read_spans(cell, TEXT) == "0:12:person|22:29:person"


def test_spans_of_two_labels_may_overlap_and_of_one_may_touch() -> None:
    assert read_spans([[0, 12, "person"], [4, 12, "family"]], TEXT) is not None
    assert read_spans([[0, 3, "person"], [3, 12, "person"]], TEXT) is not None
    assert read_spans([], TEXT) == read_spans("none", TEXT) == "none"


@pytest.mark.parametrize(
    "cell",
    [
        None,
        3,
        "person",
        "[[0, 12",
        [[0, 12]],
        [["0", 12, "person"]],
        [[0, 99, "person"]],
        [[-1, 3, "person"]],
        [[3, 3, "person"]],
        [[0, 3, ""]],
        [[0, 3, "1:2:x"]],
        [[0, 12, "person"], [4, 14, "person"]],
        [{"start": 0, "end": 12}],
    ],
)
def test_what_is_no_list_of_spans_is_not_read(cell) -> None:
    assert read_spans(cell, TEXT) is None


def test_a_label_is_what_stands_behind_its_place() -> None:
    parts = ("0:5:a:b", "a:b", "none", "1:2:")
    assert [label_of(x) for x in parts] == ["a:b", "a:b", "none", "1:2:"]
