"""Sets of labels as text, and what files may have for one."""

from __future__ import annotations

import math

import pytest

from redhost.core.label_sets import allowed, join_labels, read_label_set, split_labels


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
    ],
)
def test_a_set_is_written_in_one_way(cell: object, canonical: str) -> None:
    assert read_label_set(cell) == canonical
    assert join_labels(split_labels(canonical)) == canonical


@pytest.mark.parametrize(
    "cell",
    [None, "", "a||b", "a|none", ["a|b"], ["none"], [""], [None], [True], [math.nan], 7, {"a": 1}],
)
def test_what_is_no_set_is_none(cell: object) -> None:
    assert read_label_set(cell) is None


def test_labels_with_the_sign_or_the_word_cannot_stand_in_a_set() -> None:
    assert allowed(["a", "b c"])
    assert not allowed(["a", "none"]) and not allowed(["a|b"]) and not allowed([""])
