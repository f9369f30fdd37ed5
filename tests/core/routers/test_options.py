"""Options after a kind's name: read as numbers, or refused in one line that says what fits."""

from __future__ import annotations

import pytest

import redhost
from redhost.core.routers.options import parse_kind, read_options

KNOWN = {"k": int, "noise": float}


@pytest.mark.parametrize(
    ("text", "kind", "options"),
    [
        ("linear", "linear", {}),
        ("linear:", "linear", {}),
        ("topk:k=2", "topk", {"k": "2"}),
        ("topk:k=2,noise=0.1,", "topk", {"k": "2", "noise": "0.1"}),
        ("own:of=x=y:z", "own", {"of": "x=y:z"}),
    ],
)
def test_a_kind_and_its_options(text: str, kind: str, options: dict[str, str]) -> None:
    assert parse_kind(text) == (kind, options)


@pytest.mark.parametrize("part", ["k", "k=", "="])
def test_an_option_without_a_value_is_refused(part: str) -> None:
    with pytest.raises(redhost.UsageError) as caught:
        parse_kind(f"topk:{part}")
    assert str(caught.value) == (
        f"router 'topk:{part}': expected options as name=value, found {part!r}"
    )


def test_numbers_are_whole_where_the_kind_says_so() -> None:
    read = read_options("topk", {"k": "2", "noise": "0"}, KNOWN)
    assert read == {"k": 2, "noise": 0.0} and type(read["k"]) is int


@pytest.mark.parametrize(
    ("option", "value", "expected", "found"),
    [
        ("k", "two", "a whole number", "'two'"),
        ("k", "1.5", "a whole number", "'1.5'"),
        ("noise", "much", "a number", "'much'"),
        ("noise", "nan", "0 or more", "nan"),
        ("k", "-1", "0 or more", "-1"),
        ("top", "2", "k, noise", "top"),
    ],
)
def test_what_does_not_fit_is_reported(option: str, value: str, expected: str, found: str) -> None:
    with pytest.raises(redhost.UsageError) as caught:
        read_options("topk", {option: value}, KNOWN)
    assert str(caught.value) == (
        f"option {option!r} of router 'topk': expected {expected}, found {found}"
    )


def test_a_kind_without_options_says_so() -> None:
    with pytest.raises(redhost.UsageError, match="router 'x': expected no options, found k"):
        read_options("x", {"k": "1"}, {})
