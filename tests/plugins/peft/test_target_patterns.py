"""Patterns of strangers: matched as Python does, or not at all, and never for long."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redhost_peft.target_patterns import MOST, Pattern

NAME = "model.layers.17.self_attn.q_proj"


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        (r".*\.(q_proj|v_proj)", True),
        (r".*\.(k_proj|v_proj)$", False),
        (r"model\.layers\.\d+\.(self_attn|mlp)\.(q|k|v|o|gate|up|down)_proj", True),
        (r"^model\.layers\.[0-9]+\.self_attn\.[qkv]_proj$", True),
        (r".*?layers\.1[0-5]\..*", False),
        ("q_proj", False),  # the whole name, as PEFT does
    ],
)
def test_what_people_write_is_matched(pattern: str, found: bool) -> None:
    assert Pattern(pattern).matches(NAME) is found is (re.fullmatch(pattern, NAME) is not None)


@pytest.mark.parametrize(
    "pattern",
    [
        *("(.*)*x", "(a|a)*b", "(?!x).*", r"(a)\1", "a{2,9}", "(?i)A", "a++", "*a"),
        *("x" * 1001, ".*" * 9, "(a|a)" * 30, "a?" * 30),
    ],
)
def test_what_could_take_long_is_not(pattern: str) -> None:
    assert Pattern(pattern).matches("a" * 40) is None and not Pattern(pattern).broken


@pytest.mark.parametrize("pattern", ["(a", "a)", "[b-a]", "((("])
def test_what_is_no_pattern_is_broken(pattern: str) -> None:
    assert Pattern(pattern).matches("a") is None and Pattern(pattern).broken


SIGNS = st.sampled_from(
    [
        *("a", "b", "1", "-", ".", r"\.", r"\d", "[ab]", "[^a]", "[a-c0]"),
        *("a*", "b+", ".*", ".+?", "a?", "(", "(?:", ")", "|", "^", "$"),
    ]
)


@settings(max_examples=400)
@given(st.lists(SIGNS, max_size=12).map("".join), st.text("ab.1-", max_size=12))
def test_an_answer_is_that_of_python(pattern: str, name: str) -> None:
    answer = Pattern(pattern).matches(name)
    if answer is not None:
        assert answer is (re.fullmatch(pattern, name) is not None)
    elif Pattern(pattern).broken:
        with pytest.raises(re.error):
            re.compile(pattern)


@pytest.mark.parametrize("name", ["a" * 30, "a" * 200, "ab" * 40])
@pytest.mark.parametrize(
    "pattern", [".*.*x", "a*a*x", "(a|.)" * 15 + "x", "a?" * 15 + "a" * 15 + "x"]
)
def test_no_name_takes_long(pattern: str, name: str) -> None:
    started = time.perf_counter()
    assert not Pattern(pattern).matches(name)
    assert time.perf_counter() - started < 0.5, MOST
