"""A text as rows: the start token, where it is cut, how many bytes its tokens stand for."""

from __future__ import annotations

import pytest

import redhost
from redhost.core.generate.spelling import byte_counts, spell, start_of, unfold
from redhost.core.generate.states import states
from redhost.registry.errors import UsageError


@pytest.fixture(scope="module")
def short(make_speaker, tmp_path_factory) -> redhost.Trunk:
    """A trunk that reads twelve tokens."""
    folder = make_speaker(tmp_path_factory.mktemp("short"))
    task = redhost.Generation()
    return redhost.Backbone.load(f"hf:{folder}", max_tokens=12, task=task).trunk


def test_the_first_token_of_a_text_is_told_from_the_start_token(speaker) -> None:
    trunk, text = speaker.trunk, "hello"
    rows = unfold(trunk, [redhost.Row(text=text, label="", domain="x")])
    assert [int(r.label) for r in rows] == spell(trunk, text)
    assert {r.domain for r in rows} == {"x"}
    [h] = states(trunk, [text])
    assert len(h) == len(rows) == len(text)
    assert start_of(trunk) == trunk.tokenizer.bos_token_id


@pytest.mark.parametrize(
    ("marks", "start"), [({"eos_token": "<end>"}, "<end>"), ({"bos_token": "<go>"}, "<go>")]
)
def test_a_text_starts_with_the_token_there_is(make_speaker, tmp_path, marks, start) -> None:
    folder = make_speaker(tmp_path, marks=marks)
    trunk = redhost.Backbone.load(f"hf:{folder}", task=redhost.Generation()).trunk
    assert start_of(trunk) == trunk.tokenizer.convert_tokens_to_ids(start)


def test_without_a_start_token_nothing_is_generated(make_speaker, tmp_path) -> None:
    folder = make_speaker(tmp_path, marks={})
    backbone = redhost.Backbone.load(f"hf:{folder}", task=redhost.Generation())
    with pytest.raises(UsageError, match="no token to start a text with: expected a bos_token"):
        backbone.encode(["hello"])


def test_a_text_without_tokens_is_refused(speaker) -> None:
    with pytest.raises(UsageError, match="a text has no tokens"):
        spell(speaker.trunk, "")


def test_a_long_text_is_cut_where_the_trunk_cuts(short) -> None:
    text = "abcdefghijklmnopqrst"
    assert len(spell(short, text)) == 12
    [h] = states(short, [text])
    assert len(h) == len(unfold(short, [redhost.Row(text=text, label="")])) == 12


def test_bytes_are_those_that_the_tokens_stand_for(short) -> None:
    assert byte_counts(short, ["abc", "né", "日本", "🙂"]) == [3, 3, 6, 4]
    assert byte_counts(short, ["abcdefghijklmnop"]) == [12]
