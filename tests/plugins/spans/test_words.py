"""A text's words: where they stand, what their rows are, and what the router reads of them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from redhost_spans.words import Words, words_of
from tokenizers import Tokenizer, models, pre_tokenizers, processors

import redhost
from redhost.registry.errors import UsageError


@pytest.fixture(scope="module")
def folder(make_word_reader, tmp_path_factory) -> Path:
    """An encoder whose words are of one or two pieces."""
    wordpieces = ("ada", "love", "##lace", "met", ",", "!", "bab", "##bage")
    return make_word_reader(tmp_path_factory.mktemp("words"), *wordpieces)


@pytest.fixture(scope="module")
def backbone(folder) -> redhost.Backbone:
    task = redhost.plugins.make_task("spans")
    return redhost.Backbone.load(f"hf:{folder}", pooling="mean", task=task)


WORDS = Words()
TEXT = "ada lovelace, met babbage!"


def test_words_are_the_tokenizer_s_own_with_their_places_and_tokens(backbone) -> None:
    words = words_of(backbone.trunk, TEXT)
    assert [TEXT[w.start : w.end] for w in words] == ["ada", "lovelace", ",", "met", "babbage", "!"]
    assert [w.tokens for w in words] == [(1,), (2, 3), (4,), (5,), (6, 7), (8,)]


def test_the_space_before_a_word_is_none_of_it(make_word_reader, tmp_path) -> None:
    letters = {piece: n for n, piece in enumerate(("[UNK]", "[PAD]", "a", "b", "Ġ"))}
    made = Tokenizer(models.BPE(letters, [], unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False)
    made.post_processor = processors.ByteLevel(trim_offsets=False)
    folder = make_word_reader(tmp_path, tokenizer=made)
    trunk = redhost.Backbone.load(f"hf:{folder}", pooling="mean").trunk
    text = "ab  ba a"
    assert [text[w.start : w.end] for w in words_of(trunk, text)] == ["ab", "ba", "a"]


def test_a_word_has_the_labels_of_every_span_that_has_some_of_it(backbone) -> None:
    row = redhost.Row(text=TEXT, label="0:12:person|4:12:family|15:16:odd", domain="x")
    rows = WORDS.rows(backbone.trunk, [row])
    assert [r.label for r in rows] == ["person", "family|person", "none", "odd", "none", "none"]
    assert {r.domain for r in rows} == {"x"} and rows[1].text == "lovelace"


def test_a_word_s_row_is_the_mean_of_its_tokens_and_the_text_s_stands_before(backbone) -> None:
    [states] = backbone.trunk.states([TEXT])
    [rows] = WORDS.states(backbone.trunk, [TEXT])
    assert torch.equal(rows[0], backbone.trunk.encode([TEXT])[0])
    assert torch.equal(rows[2], states[2:4].mean(0)) and len(rows) == 7


def test_a_text_s_rows_have_the_same_bits_in_any_company(backbone) -> None:
    texts = ["met", TEXT, "ada ! " * 5, TEXT[:12]]
    h, read = backbone.encode(texts), WORDS.answers(backbone.trunk, texts)
    starts = read.first(torch.arange(len(h))).tolist()
    assert starts == [0, 1, 7, 17]
    for text, start in zip(texts, starts, strict=True):
        alone = backbone.encode(text)
        assert torch.equal(h[start : start + len(alone)], alone)


def test_experts_read_words_and_the_router_the_text(backbone) -> None:
    [states] = WORDS.states(backbone.trunk, [TEXT])
    layout = WORDS.layout(32)
    wide = WORDS.features(states, layout, eps=1e-5)
    assert torch.equal(layout.base(wide), states[1:]) and wide.shape == (6, 64)
    assert torch.equal(layout.router_input(wide), states[:1].expand(6, -1))
    assert layout.router_width == 32 and backbone.bus_config().router_width == 32
    assert torch.equal(WORDS.features(states, None, eps=1e-5), states[1:])


def test_what_the_trunk_does_not_read_has_no_words(folder) -> None:
    trunk = redhost.Backbone.load(f"hf:{folder}", pooling="mean", max_tokens=5).trunk
    words = words_of(trunk, TEXT)
    assert [TEXT[w.start : w.end] for w in words] == ["ada", "lovelace"]
    assert len(WORDS.states(trunk, [TEXT])[0]) == 3


def test_a_text_without_words_is_refused(backbone) -> None:
    for text in ("", "  \n"):
        with pytest.raises(UsageError, match="no words"):
            words_of(backbone.trunk, text)
        with pytest.raises(UsageError):
            backbone.require_tokens([text])


def test_an_engine_that_gives_one_vector_for_a_text_is_refused(backbone) -> None:
    class Another(redhost.plugins.TextEncoder):
        engine = "another"

        def passes(self, ids):
            yield from super().passes(ids)

    trunk = Another(model=backbone.trunk.model, tokenizer=backbone.trunk.tokenizer, pooling="mean")
    with pytest.raises(UsageError, match="another"):
        dataclasses.replace(backbone, trunk=trunk).encode([TEXT])
