"""A text as rows: the start token, where it is cut, how many bytes its tokens stand for."""

from __future__ import annotations

import logging

import pytest
from redhost_generate.tokens import (
    Tokens,
    byte_counts,
    llama_cpp_start,
    start_of,
    token_states,
    tokenize,
)
from tokenizers import normalizers, processors

import redhost
from redhost.registry.errors import UsageError


@pytest.fixture(scope="module")
def short(make_speaker, tmp_path_factory) -> redhost.plugins.TextEncoder:
    """A trunk that reads twelve tokens."""
    folder = make_speaker(tmp_path_factory.mktemp("short"))
    task = redhost.plugins.make_task("generation")
    return redhost.Backbone.load(f"hf:{folder}", max_tokens=12, task=task).trunk


def test_the_first_token_of_a_text_is_distinguished_from_the_start_token(speaker) -> None:
    trunk, text = speaker.trunk, "hello"
    rows = Tokens().rows(trunk, [redhost.Row(text=text, label="", domain="x")])
    assert [int(r.label) for r in rows] == tokenize(trunk, text)
    assert {r.domain for r in rows} == {"x"}
    [h] = token_states(trunk, [text])
    assert len(h) == len(rows) == len(text)
    assert start_of(trunk) == trunk.tokenizer.bos_token_id


@pytest.mark.parametrize(
    ("marks", "start"), [({"eos_token": "<end>"}, "<end>"), ({"bos_token": "<go>"}, "<go>")]
)
def test_a_text_starts_with_the_token_there_is(make_speaker, tmp_path, marks, start) -> None:
    folder = make_speaker(tmp_path, marks=marks)
    trunk = redhost.Backbone.load(
        f"hf:{folder}", task=redhost.plugins.make_task("generation")
    ).trunk
    assert start_of(trunk) == trunk.tokenizer.convert_tokens_to_ids(start)


def test_without_a_start_token_nothing_is_generated(make_speaker, tmp_path) -> None:
    folder = make_speaker(tmp_path, marks={})
    backbone = redhost.Backbone.load(f"hf:{folder}", task=redhost.plugins.make_task("generation"))
    with pytest.raises(UsageError, match="no token to start a text with: expected a bos_token"):
        backbone.encode(["hello"])


def test_a_text_without_tokens_is_refused(speaker) -> None:
    with pytest.raises(UsageError, match="a text has no tokens"):
        tokenize(speaker.trunk, "")


def test_a_long_text_is_for_us_to_refuse_not_for_transformers(short, caplog, monkeypatch) -> None:
    logger = logging.getLogger("transformers")
    monkeypatch.setattr(short.tokenizer, "model_max_length", 12)
    logger.addHandler(caplog.handler)
    try:
        short.tokenizer("hello " * 9)  # it says so: twice where its loggers propagate
        assert caplog.records
        caplog.clear()
        short.tokenizer.deprecation_warnings.clear()
        assert len(tokenize(short, "hello " * 9, whole=True)) > 12
    finally:
        logger.removeHandler(caplog.handler)
    assert not caplog.records


def test_a_long_text_is_cut_where_the_trunk_cuts(short) -> None:
    text = "abcdefghijklmnopqrst"
    assert len(tokenize(short, text)) == 12
    [h] = token_states(short, [text])
    assert len(h) == len(Tokens().rows(short, [redhost.Row(text=text, label="")])) == 12


def test_bytes_are_those_that_the_tokens_stand_for(short) -> None:
    assert byte_counts(short, ["abc", "né", "日本", "🙂"]) == [3, 3, 6, 4]
    assert byte_counts(short, ["abcdefghijklmnop"]) == [12]


@pytest.fixture
def marking(make_speaker, tmp_path) -> redhost.plugins.TextEncoder:
    """A trunk whose tokenizer puts a mark before every text, and drops accents."""
    folder = make_speaker(tmp_path)
    task = redhost.plugins.make_task("generation")
    trunk = redhost.Backbone.load(f"hf:{folder}", task=task).trunk
    mark, rust = trunk.tokenizer.bos_token, trunk.tokenizer.backend_tokenizer
    rust.post_processor = processors.TemplateProcessing(
        single=f"{mark} $A", special_tokens=[(mark, start_of(trunk))]
    )
    rust.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()])
    return trunk


def test_marks_of_the_tokenizer_are_no_tokens_of_the_text(marking) -> None:
    assert len(marking.token_ids("abc")) == 4
    ids = tokenize(marking, "abc")
    assert len(ids) == 3 and start_of(marking) not in ids


def test_what_llama_cpp_needs_to_start_a_text_as_redhost_does(
    speaker, marking, make_speaker, tmp_path
) -> None:
    add = "--override-kv tokenizer.ggml.add_bos_token=bool:true"
    assert llama_cpp_start(speaker.trunk) == add and llama_cpp_start(marking) == ""
    folder = make_speaker(tmp_path / "ending", marks={"eos_token": "<end>"})
    ending = redhost.Backbone.load(
        f"hf:{folder}", task=redhost.plugins.make_task("generation")
    ).trunk
    own = f"{add},tokenizer.ggml.bos_token_id=int:{start_of(ending)}"
    assert llama_cpp_start(ending) == own


def test_a_text_that_was_not_cut_has_its_own_bytes(marking) -> None:
    assert marking.tokenizer.decode(tokenize(marking, "né")) == "ne"
    assert byte_counts(marking, ["né"]) == [3]
