"""Sets of labels as text, and what files may have for one."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redhost.core.label_sets import join_labels, read_label_set, split_labels

LABELS = st.text(min_size=1) | st.sampled_from(["none", "a|b", "|", "\\", "a\\", r"\none", "1:2:x"])


@pytest.mark.parametrize(
    ("cell", "canonical"),
    [
        (["sport", "news"], "news|sport"),
        (["news", "news"], "news"),
        ([7, "a"], "7|a"),
        ([], "none"),
        ("sport|news", "news|sport"),
        (" sport | news ", "news|sport"),
        ("none", "none"),
        (["none"], r"\none"),
        (["a|b", "none"], r"a\|b|none"),
        (r"C:\x|b", "C:\\\\x|b"),
    ],
)
def test_a_set_is_written_in_one_way(cell: object, canonical: str) -> None:
    assert read_label_set(cell) == canonical
    assert join_labels(split_labels(canonical)) == canonical


@pytest.mark.parametrize(
    "cell",
    [None, "", "a||b", "a|", [""], [None], [True], [math.nan], 7, {"a": 1}],
)
def test_what_is_no_set_is_none(cell: object) -> None:
    assert read_label_set(cell) is None


@given(st.sets(LABELS))
def test_a_set_of_any_labels_is_read_as_it_was_written(labels: set[str]) -> None:
    assert set(split_labels(join_labels(labels))) == labels
