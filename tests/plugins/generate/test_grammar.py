"""Text that is JSON of a schema: every text that ends is valid, whatever the sampling."""

from __future__ import annotations

import dataclasses
import json
import random
import string
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import redhost_generate
import torch
from redhost_generate import JsonGrammar, Sampling
from redhost_generate.sampling import Sampler
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import redhost
from redhost import MissingError
from redhost.core.model.composed import ComposedModel
from redhost.registry.errors import UsageError

PROMPT = "3 + 4 = "
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "n": {"type": "integer", "minimum": -3, "maximum": 99},
        "tags": {"type": "array", "items": {"enum": ["a", None]}, "maxItems": 3},
    },
    "required": ["name", "n", "tags"],
    "additionalProperties": False,
}
HARSH = Sampling(repetition_penalty=1.5, frequency_penalty=2, presence_penalty=-2)


def written(
    model: ComposedModel, schema: Mapping[str, Any] = SCHEMA, **options: Any
) -> tuple[str, JsonGrammar]:
    """Return a text and its grammar, which says whether it is complete."""
    grammar = JsonGrammar(model, schema)
    options = {"max_tokens": 150, **options}
    tokens = redhost_generate.generate(model, PROMPT, grammar=grammar, **options)
    return "".join(t.text for t in tokens), grammar


# -- texts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0},
        {},
        {"temperature": 3.0},
        {"sampling": Sampling(top_p=0.3)},
        {"sampling": Sampling(top_k=1)},
        {"sampling": Sampling(min_p=0.9)},
        {"sampling": HARSH},
        {"expert": "sums"},
        {"expert": "backbone"},
    ],
)
@pytest.mark.parametrize("form", ["residual", "mixture"])
def test_a_text_that_ends_is_valid_whatever_the_sampling(
    composed, mixed, form, options, seed
) -> None:
    model = composed if form == "residual" else mixed
    text, grammar = written(model, seed=seed, **options)
    assert grammar.finished
    jsonschema.validate(json.loads(text), SCHEMA)
    assert written(model, seed=seed, **options)[0] == text


def test_without_a_grammar_the_model_writes_no_json(composed) -> None:
    """The control: what the texts above have comes from the grammar."""
    tokens = redhost_generate.generate(composed, PROMPT, max_tokens=60, temperature=0)
    with pytest.raises(ValueError, match=r"Expecting value|Extra data"):
        json.loads("".join(t.text for t in tokens))


def test_a_text_that_a_limit_ends_is_not_finished(composed) -> None:
    whole, _ = written(composed, temperature=0)
    count = len(whole)  # the model has bytes for tokens
    for most in (1, count // 2, count - 1):
        text, grammar = written(composed, temperature=0, max_tokens=most)
        assert (text, grammar.finished) == (whole[:most], False)
    text, grammar = written(composed, temperature=0, max_tokens=count)
    assert (text, grammar.finished) == (whole, True)


def test_a_text_that_could_go_on_ends_with_the_end_token_alone(composed) -> None:
    """After a digit of a number, either another follows or the end."""
    ends = set()
    for seed in range(12):
        text, grammar = written(composed, {"type": "integer"}, seed=seed, max_tokens=6)
        assert isinstance(json.loads(text), int)
        ends.add((grammar.finished, len(text) < 6))
    assert ends == {(True, True), (False, False)}
    text, grammar = written(composed, {"enum": [7]}, temperature=0)
    assert (text, grammar.finished) == ("7", True)


def test_probabilities_stay_those_of_the_bus(composed) -> None:
    grammar = JsonGrammar(composed, SCHEMA)
    options: dict[str, Any] = {"temperature": 0, "max_tokens": 1}
    [free] = redhost_generate.generate(composed, PROMPT, **options)
    [bound] = redhost_generate.generate(composed, PROMPT, grammar=grammar, **options)
    assert bound.text == "{" and bound.probability < free.probability
    assert bound.weights == free.weights


def test_each_text_has_its_own_state(composed) -> None:
    alone = [written(composed, seed=n)[0] for n in range(3)]
    texts = [
        redhost_generate.generate(
            composed, PROMPT, max_tokens=150, seed=n, grammar=JsonGrammar(composed, SCHEMA)
        )
        for n in range(3)
    ]
    shown = [""] * 3
    for _ in range(150):  # a token of each in turn, as a server does
        for n, tokens in enumerate(texts):
            shown[n] += "".join(t.text for t in [next(tokens, None)] if t)
    assert shown == alone and len({*alone}) > 1


def test_the_grammar_of_a_text_that_has_ended_is_refused(composed) -> None:
    _, grammar = written(composed, temperature=0)
    with pytest.raises(UsageError, match="a text that has ended: expected one for each text"):
        redhost_generate.generate(composed, PROMPT, grammar=grammar)


# -- the mask -------------------------------------------------------------------------------------


def letters(model: ComposedModel, p: torch.Tensor) -> str:
    """Return the tokens of p ``(V,)`` that may follow."""
    return str(model.backbone.trunk.tokenizer.decode(p.nonzero().flatten().tolist()))


def test_what_may_follow_keeps_its_probability(composed) -> None:
    grammar = JsonGrammar(composed, {"enum": ["ab", "ac", 3]})
    p = torch.rand(composed.bus.answers, generator=torch.Generator().manual_seed(0))
    for token, may in (('"', '"3'), ("a", "a"), ("b", "bc"), ('"', '"')):
        masked = grammar.mask(p)
        assert {*letters(composed, masked)} == {*may}
        assert torch.equal(masked[masked > 0], p[masked > 0])
        [number] = composed.backbone.trunk.token_ids(token, add_special_tokens=False)
        grammar.accept(number)
    assert grammar.finished


def test_what_may_follow_can_be_drawn_where_float32_has_no_probability_for_it(composed) -> None:
    grammar = JsonGrammar(composed, {"enum": ["x", 3]})
    p = torch.zeros(composed.bus.answers)
    p[0] = 1
    masked = grammar.mask(p)
    assert {*letters(composed, masked)} == {*'"3'} and {*masked[masked > 0].tolist()} == {1.0}


def test_a_head_may_have_more_rows_than_there_are_tokens(composed) -> None:
    p = torch.ones(composed.bus.answers + 50)
    assert letters(composed, JsonGrammar(composed, SCHEMA).mask(p)) == "{"


def test_what_may_not_follow_is_refused(composed) -> None:
    with pytest.raises(UsageError, match="the text cannot become JSON of the schema"):
        JsonGrammar(composed, SCHEMA).accept(0)


class Anything:
    """The grammar of any text."""

    end, finished = -1, False

    def mask(self, p: torch.Tensor) -> torch.Tensor:
        return p

    def accept(self, token: int) -> None:
        pass


@pytest.mark.parametrize("heat", [0, 1, 0.7])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(top_p=0.8, top_k=9), HARSH])
def test_without_a_grammar_nothing_is_masked(composed, heat, sampling) -> None:
    """Token for token and bit for bit what a mask of nothing gives."""
    options: dict[str, Any] = {"temperature": heat, "seed": 7, "sampling": sampling}
    free = [*redhost_generate.generate(composed, PROMPT, max_tokens=40, **options)]
    bound = redhost_generate.generate(
        composed, PROMPT, max_tokens=40, grammar=Anything(), **options
    )
    assert free == [*bound]


# -- schemas --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object"},
        {"type": "object", "additionalProperties": {"type": "boolean"}, "minProperties": 1},
        {"anyOf": [{"type": "string", "pattern": "^[a-z]{2,4}$"}, {"type": "null"}]},
        {"type": "number", "multipleOf": 0.5, "minimum": -2, "maximum": 40},
        {"type": "string", "format": "date"},
        {"type": "array", "prefixItems": [{"const": 1}], "items": {"type": "string"}},
        {
            "$defs": {"tree": {"type": "array", "items": {"$ref": "#/$defs/tree"}}},
            "$ref": "#/$defs/tree",
        },
        {"oneOf": [{"type": "string", "maxLength": 2}, {"type": "integer"}]},
        {"type": "array", "items": True, "x-guidance": {"item_separator": ";"}},
    ],
    ids=json.dumps,
)
def test_texts_of_every_kind_of_schema_are_valid(composed, schema) -> None:
    """Drawn at random from all that may follow, so that the grammar alone decides."""
    tokenizer, ended = composed.backbone.trunk.tokenizer, 0
    for seed in range(40):
        grammar, chance = JsonGrammar(composed, schema), random.Random(seed)
        ids = list[int]()
        while not grammar.finished and len(ids) < 300:
            may = grammar.mask(torch.ones(composed.bus.answers)).nonzero().flatten().tolist()
            closing = [n for n in may if n == grammar.end or tokenizer.decode([n]) in set('"}]')]
            ids.append(chance.choice(closing if closing and chance.random() < 0.3 else may))
            grammar.accept(ids[-1])
        if grammar.finished:
            ended += 1
            text = tokenizer.decode([n for n in ids if n != grammar.end])
            jsonschema.validate(json.loads(text), schema)
            assert "\n" not in text
    assert ended > 20


@pytest.mark.parametrize(
    ("schema", "found"),
    [
        ({"type": "nothing"}, "Invalid type: nothing"),
        ({"type": "array", "uniqueItems": True}, 'Unimplemented keys: ["uniqueItems"]'),
        ({"not": {}, "x-guidance": {"lenient": True}}, 'Unimplemented keys: ["not"]'),
        ({"type": "string", "format": "shoe"}, "Unknown format: shoe"),
        ({"$ref": "https://example.com/x.json"}, "does not fetch"),
        ({"$ref": "#/$defs/none"}, "does not exist"),
        ({"type": "string", "pattern": r"(a)\1"}, "backreferences are not supported"),
        ({"enum": []}, "Unsatisfiable schema"),
        ({"type": "object", "required": ["a"], "properties": {"a": False}}, "Unsatisfiable"),
        ([], "Expecting object schema"),
        ({"const": {1, 2}}, "not JSON serializable"),
    ],
)
def test_a_schema_that_is_not_supported_is_a_line(composed, capfd, schema, found) -> None:
    with pytest.raises(UsageError) as refused:
        JsonGrammar(composed, schema)
    assert found in refused.value.found and str(refused.value).isprintable()
    assert "the schema cannot be used: expected a JSON schema" in str(refused.value)
    assert capfd.readouterr() == ("", "")


def test_without_llguidance_the_extra_is_named(composed, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(MissingError) as missing:
        JsonGrammar(composed, SCHEMA)
    assert missing.value.hint == "Run: pip install 'redhost-generate[json]'"


# -- vocabularies ---------------------------------------------------------------------------------

MERGED = ('{"', '":', '",', '"}', "]}", "na", "name", "tags", "null", "12", ', "', "[]")


def merging(marks: dict[str, str]) -> PreTrainedTokenizerFast:
    """Return byte-level BPE, with tokens that span several parts of JSON."""
    vocabulary = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *marks.values()]
    merges = []
    for token in (t.replace(" ", "Ġ") for t in MERGED):
        for n in range(1, len(token)):
            if token[: n + 1] not in vocabulary:
                vocabulary.append(token[: n + 1])
                merges.append((token[:n], token[n]))
    made = Tokenizer(models.BPE(vocab={t: n for n, t in enumerate(vocabulary)}, merges=merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made, **marks)


def sentences(marks: dict[str, str]) -> PreTrainedTokenizerFast:
    """Return the kind of SentencePiece: ▁ for spaces, bytes where there is no token."""
    tokens = [*marks.values(), *(f"<0x{n:02X}>" for n in range(256)), "▁", *string.printable[:94]]
    tokens += [t.replace(" ", "▁") for t in MERGED]
    vocabulary = [(t, -float(n)) for n, t in enumerate(tokens)]
    made = Tokenizer(models.Unigram(vocabulary, 0, byte_fallback=True))
    made.normalizer = normalizers.Replace(" ", "▁")
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return PreTrainedTokenizerFast(tokenizer_object=made, **marks)


def words(marks: dict[str, str]) -> PreTrainedTokenizerFast:
    """Return words, which have no bytes."""
    made = Tokenizer(models.WordLevel({"[UNK]": 0, **dict.fromkeys(marks.values(), 1)}, "[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="[UNK]", **marks)


@pytest.fixture
def having(composed, speaker_model) -> Callable[[Any], ComposedModel]:
    """Return the function from a tokenizer to a composition whose backbone has it."""

    def call(tokenizer: Any) -> ComposedModel:
        task = redhost.plugins.make_task("generation")
        backbone = redhost.Backbone.load(f"hf:{speaker_model}", task=task)
        backbone.trunk.tokenizer = tokenizer
        return dataclasses.replace(composed, backbone=backbone)

    return call


BOTH = {"bos_token": "<s>", "eos_token": "</s>"}


@pytest.mark.parametrize("make", [merging, sentences])
@pytest.mark.parametrize("marks", [BOTH, {"bos_token": "<s>"}, {"eos_token": "</s>"}])
def test_any_vocabulary_of_bytes_writes_json(having, make, marks) -> None:
    tokenizer = make(marks)
    model, count = having(tokenizer), len(tokenizer)
    spanning = 0
    for seed in range(25):
        grammar = JsonGrammar(model, SCHEMA)
        assert grammar.end == tokenizer.convert_tokens_to_ids([*marks.values()][-1])
        sampler = Sampler(
            (), temperature=1, seed=seed, sampling=Sampling(top_p=0.99), grammar=grammar
        )
        chance, ids = torch.Generator().manual_seed(seed), list[int]()
        while not grammar.finished and len(ids) < 300:
            ids.append(sampler.draw(torch.rand(count, generator=chance)))
        assert grammar.finished
        jsonschema.validate(json.loads(tokenizer.decode(ids).removesuffix("</s>")), SCHEMA)
        spanning += sum(tokenizer.decode([n]) in MERGED for n in ids)
    assert spanning > 25


def test_tokens_without_bytes_are_refused(having) -> None:
    with pytest.raises(UsageError, match="tokens cannot be read as bytes: expected a fast tok"):
        JsonGrammar(having(words(BOTH)), SCHEMA)


def test_a_backbone_of_labels_is_refused(backbone_folder, composed, bare) -> None:
    with pytest.raises(UsageError, match="does not generate text"):
        JsonGrammar(dataclasses.replace(composed, backbone=bare), SCHEMA)


def test_a_text_that_the_vocabulary_cannot_end_is_a_line(having, tmp_path: Path) -> None:
    """There is no token for the bytes of é, nor is it allowed as an escape."""
    ascii_alone = {c: n for n, c in enumerate([*string.printable[:94], "Ġ", *BOTH.values()])}
    made = Tokenizer(models.BPE(vocab=ascii_alone, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    model = having(PreTrainedTokenizerFast(tokenizer_object=made, **BOTH))
    grammar = JsonGrammar(model, {"const": "é"})
    with pytest.raises(UsageError, match="the text cannot become JSON of the schema"):
        for _ in range(9):
            p = grammar.mask(torch.ones(len(ascii_alone)))
            grammar.accept(int(p.argmax()))
