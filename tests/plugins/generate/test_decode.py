"""Going on with a text: the same as the batch path, greedy or drawn, ended where it must."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch
from redhost_generate.decode import TokenReader, generate
from redhost_generate.sessions import DecodingSession, routes_once
from redhost_generate.tokens import Tokens, start_of, tokenize

import redhost
from redhost.core.composition.options import RecomposeOptions
from redhost.core.composition.recompose import compose
from redhost.registry.errors import UsageError

PROMPT = "the cat sat "


def ids_of(composed, text: str) -> list[int]:
    trunk = composed.backbone.trunk
    return [start_of(trunk), *tokenize(trunk, text)]


def batch(composed, ids: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return p and α after each token, of the whole text at once."""
    backbone = composed.backbone
    with torch.inference_mode():
        h = backbone.trunk.hidden_states(torch.tensor([ids]))[0]
        return composed.bus(Tokens().features(h, backbone.layout, eps=backbone.eps))


@pytest.mark.parametrize("form", ["residual", "mixture"])
def test_steps_say_what_the_whole_text_says(composed, mixed, form) -> None:
    made = composed if form == "residual" else mixed
    tokens = list(generate(made, PROMPT, max_tokens=30, seed=3))
    ids = [*ids_of(made, PROMPT), *(t.id for t in tokens)]
    p, alpha = batch(made, ids[:-1])
    assert torch.allclose(p.sum(-1), torch.ones(len(p)), atol=1e-5)
    assert torch.allclose(alpha.sum(-1), torch.ones(len(p)), atol=1e-5)
    for token, row, weights in zip(tokens, p[-30:], alpha[-30:], strict=True):
        assert token.probability == pytest.approx(float(row[token.id]), abs=1e-5)
        assert list(token.weights) == list(made.bus.columns)
        assert list(token.weights.values()) == pytest.approx(weights.tolist(), abs=1e-5)


def test_a_prompt_that_begins_with_the_start_token_gets_no_second_one(composed) -> None:
    """As chat templates write it."""
    start = composed.backbone.trunk.tokenizer.bos_token
    assert tokenize(composed.backbone.trunk, start) == [start_of(composed.backbone.trunk)]
    plain, marked, twice = (
        [t.id for t in generate(composed, text, max_tokens=30, temperature=0)]
        for text in (PROMPT, f"{start}{PROMPT}", f"{start}{start}{PROMPT}")
    )
    assert plain == marked
    assert twice != plain  # control: one more would count


def test_every_step_is_a_distribution(composed, mixed) -> None:
    for made in (composed, mixed):
        walk, fresh = DecodingSession(made), ids_of(made, PROMPT)
        for token in range(20):
            p, _ = walk.step(fresh)
            assert float(p.sum()) == pytest.approx(1, abs=1e-5)
            fresh = [token]


def test_the_bus_keeps_its_laws(composed) -> None:
    from redhost.testing import assert_bus_laws

    assert_bus_laws(composed.bus, composed.backbone.encode([PROMPT]))


def test_the_cache_of_keys_and_values_is_the_backbones_own(composed) -> None:
    walk, trunk, cache = DecodingSession(composed), composed.backbone.trunk, None
    for ids in (ids_of(composed, PROMPT), [7], [9], [11]):
        walk.step(ids)
        with torch.inference_mode():
            _, cache = trunk.decode_step(torch.tensor([ids]), cache)
    for mine, bare in zip(walk.cache.layers, cache.layers, strict=True):
        assert mine.keys.shape[2] == len(ids_of(composed, PROMPT)) + 3
        assert torch.equal(mine.keys, bare.keys) and torch.equal(mine.values, bare.values)


@pytest.mark.parametrize("members", [3, 2])
def test_with_all_experts_declined_the_base_speaks_bit_for_bit(
    composed, speaker, speaker_folder, speaking_experts, members
) -> None:
    """Also after one was taken out: nothing of it stays."""
    made = composed
    if members < 3:
        folders = list(speaking_experts.values())[:members]
        made = compose(
            speaker_folder, folders, options=RecomposeOptions(router="statistics")
        ).composed
    h = made.backbone.encode([PROMPT])
    declined = torch.zeros(len(h), len(made.bus.columns))
    declined[:, made.bus.columns.index("backbone")] = 1.0
    with torch.inference_mode():
        found = made.bus.logits(h, made.bus.norm(h), declined)
        base = speaker.encode([PROMPT]) @ speaker.classifier.T
    assert torch.equal(found, base)


# -- choosing --------------------------------------------------------------------------------------


def test_temperature_0_takes_the_most_probable_token_whatever_the_seed(composed) -> None:
    one, two = (list(generate(composed, PROMPT, temperature=0, seed=s)) for s in (0, 1))
    assert one == two and len(one) == 100
    p, _ = batch(composed, [*ids_of(composed, PROMPT), *(t.id for t in one[:-1])])
    assert [t.id for t in one] == p[-100:].argmax(-1).tolist()


@pytest.mark.parametrize("temperature", [1e-3, 1e-300])
def test_almost_no_temperature_is_none(composed, temperature) -> None:
    greedy = [t.id for t in generate(composed, PROMPT, max_tokens=20, temperature=0)]
    drawn = generate(composed, PROMPT, max_tokens=20, temperature=temperature, seed=5)
    assert [t.id for t in drawn] == greedy


def test_a_seed_is_a_text(composed) -> None:
    texts = [[t.id for t in generate(composed, PROMPT, seed=s)] for s in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_heat_makes_rare_tokens_common(composed) -> None:
    mean = [
        sum(t.probability for t in generate(composed, PROMPT, temperature=heat)) / 100
        for heat in (0.3, 1.0, 1e6)
    ]
    assert mean[0] > mean[1] > mean[2]


def test_tokens_come_one_by_one(composed) -> None:
    stream = generate(composed, "", max_tokens=10**9)
    assert len(list(itertools.islice(stream, 5))) == 5
    assert len(list(generate(composed, PROMPT, max_tokens=1))) == 1


# -- ending ----------------------------------------------------------------------------------------


def test_a_text_ends_before_the_end_token(composed) -> None:
    tokenizer = composed.backbone.trunk.tokenizer
    greedy = [t.id for t in generate(composed, PROMPT, max_tokens=20, temperature=0)]
    last = max(greedy.index(i) for i in greedy)  # where a token comes for the first time
    printed = tokenizer.eos_token
    try:
        tokenizer.eos_token = tokenizer.convert_ids_to_tokens(greedy[last])
        ended = [t.id for t in generate(composed, PROMPT, max_tokens=20, temperature=0)]
    finally:
        tokenizer.eos_token = printed
    assert last > 0 and ended == greedy[:last]


def shortened(composed, tokens: int):
    """Return the composition with a trunk that reads so many tokens."""
    own = composed.backbone.trunk
    trunk = redhost.plugins.TextEncoder(
        model=own.model,
        tokenizer=own.tokenizer,
        pooling=own.pooling,
        max_tokens=tokens,
        head=own.head,
    )
    backbone = dataclasses.replace(composed.backbone, trunk=trunk)
    return dataclasses.replace(composed, backbone=backbone)


def test_a_text_ends_where_the_longest_input_does(composed) -> None:
    whole = list(generate(composed, "abcdefgh", max_tokens=50, temperature=0))
    cut = list(generate(shortened(composed, 12), "abcdefgh", max_tokens=50, temperature=0))
    assert len(whole) == 50 and cut == whole[:3]


def test_a_prompt_that_fills_the_longest_input_is_refused(composed) -> None:
    with pytest.raises(UsageError, match="too long: expected fewer than 12 tokens, found 12"):
        generate(shortened(composed, 12), "abcdefghijk")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tokens": 0}, "too few tokens: expected at least 1, found 0"),
        ({"temperature": -0.5}, "no such temperature: expected a number from 0 on, found -0.5"),
        ({"temperature": float("nan")}, "no such temperature"),
        ({"temperature": float("inf")}, "no such temperature"),
    ],
)
def test_numbers_out_of_range_are_refused_before_anything_runs(composed, options, message) -> None:
    with pytest.raises(UsageError, match=message):
        generate(composed, PROMPT, **options)


def test_a_backbone_that_answers_labels_does_not_generate(composed) -> None:
    labels = dataclasses.replace(
        composed.backbone, task=redhost.plugins.make_task("classification")
    )
    with pytest.raises(UsageError, match="does not generate text"):
        generate(dataclasses.replace(composed, backbone=labels), PROMPT)


def test_a_backbone_that_generates_answers_no_labels(composed) -> None:
    with pytest.raises(UsageError, match="tells next tokens, not"):
        composed.answer([PROMPT])


# -- spelling --------------------------------------------------------------------------------------


def test_a_character_of_several_tokens_comes_whole(speaker) -> None:
    text = "né 日本 🙂!"
    ids = tokenize(speaker.trunk, text)
    assert len(ids) == len(text.encode()) > len(text)
    reader = TokenReader(speaker.trunk, ids_of_start(speaker))
    printed = [reader.read(i) for i in ids]
    assert [t for t in printed if t] == list(text)


def test_bytes_that_are_no_character_are_marked_and_lose_nothing_after_them(speaker) -> None:
    reader = TokenReader(speaker.trunk, ids_of_start(speaker))
    broken = tokenize(speaker.trunk, "日")[:2]
    printed = [reader.read(i) for i in (*broken, *tokenize(speaker.trunk, "ab"))]
    assert printed[:2] == ["", ""] and printed[2].endswith("a") and printed[3] == "b"


def test_what_is_shown_of_a_long_text_is_its_text(composed) -> None:
    tokens = list(generate(composed, PROMPT, max_tokens=200, temperature=0.7, seed=2))
    tokenizer = composed.backbone.trunk.tokenizer
    whole = tokenizer.decode([t.id for t in tokens])
    shown = "".join(t.text for t in tokens)
    assert whole.startswith(shown) and set(whole[len(shown) :]) <= {"\ufffd"}


def ids_of_start(speaker) -> list[int]:
    return [start_of(speaker.trunk)]


def test_words_keep_the_space_before_them(speaker) -> None:
    """Some tokenizers write a first word without it; the control reads word by word."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<s>", "▁the", "▁cat", "▁sat", "s"]
    made = Tokenizer(models.WordLevel({w: n for n, w in enumerate(words)}, unk_token="<s>"))
    made.pre_tokenizer, made.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>")
    trunk = redhost.plugins.TextEncoder(
        model=speaker.trunk.model, tokenizer=tokenizer, pooling="last"
    )
    reader = TokenReader(trunk, [0, 1])
    assert [reader.read(i) for i in (2, 4, 3)] == [" cat", "s", " sat"]
    assert [tokenizer.decode([i]) for i in (2, 4, 3)] == ["cat", "s", "sat"]


def test_without_an_adapter_every_token_is_routed(composed) -> None:
    """With one, the prompt is: see `tests/plugins/peft/test_generation.py`."""
    assert not routes_once(composed)
