"""A text's bits are its own: alone, in any order, beside any others, with any number of threads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from redhost_peft.graft import Graft
from redhost_peft.tap import Tap, compute_features
from torch.nn import functional
from transformers import AutoConfig, AutoModel

import redhost
from redhost.core.backbones.bfloat16 import BFloat16Encoder, is_capable
from redhost.core.backbones.packs import packs
from redhost.core.backbones.tiles import ROW_BY_ROW, tile_of, tiled
from redhost.plugins import TextEncoder
from redhost.registry.errors import BackboneMismatchError

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
}
GROUPED = {"num_key_value_heads": 2}
OTHERS = {
    "gpt2": {"n_embd": 48, "n_layer": 2, "n_head": 4},
    "bert": {"hidden_size": 48, "num_attention_heads": 4},
    "distilbert": {"dim": 48, "hidden_dim": 50, "n_layers": 2, "n_heads": 4},
}
"""Of other kernels, or with heads of 12 numbers: their texts share no pass."""

WIDE = {"hidden_size": 256, "intermediate_size": 512}
"""Large enough for oneDNN's product."""

LOWERED = ", bf16"
"""Of engines: the same encoder, with products in bfloat16."""

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, SIZES | (GROUPED if "wen" in name else {})) for name in sorted(ROW_BY_ROW)},
    "llama, grouped heads": ("llama", SIZES | GROUPED),
    "bert, wide": ("bert", SIZES | WIDE),
    "qwen3, wide": ("qwen3", SIZES | WIDE | GROUPED),
    "bert, one head": ("bert", SIZES | {"hidden_size": 32, "num_attention_heads": 1}),
    **{f"{name}, others": (name, SIZES | sizes) for name, sizes in OTHERS.items()},
}
IN_BFLOAT16 = ("bert, wide", "qwen3, wide", "roberta", "bert, one head", "gpt2, others")
CASES |= {f"{name}{LOWERED}": CASES[name] for name in IN_BFLOAT16} if is_capable() else {}


@cache
def encoder(case: str, tokenizer: Any) -> TextEncoder:
    name, sizes = CASES[case]
    torch.manual_seed(0)
    config = AutoConfig.for_model(name, vocab_size=len(tokenizer.get_vocab()), **sizes)
    model = AutoModel.from_config(config, dtype=torch.float32)
    for path, part in model.named_parameters():
        if path.endswith("bias"):  # zero at the start: one left out would not show
            torch.nn.init.normal_(part, std=0.1)
    made = TextEncoder(
        model=model,
        tokenizer=tokenizer,
        pooling="mean",
        max_tokens=100,
    )
    if not case.endswith(LOWERED):
        return made
    try:
        return BFloat16Encoder(made)
    except BackboneMismatchError as e:  # as `--device bf16` does there
        pytest.skip(f"this processor's products in bfloat16 are refused: {e.problem}")


@pytest.fixture(params=[1, 2], scope="module", ids=["1 thread", "2 threads"])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


EXAMPLES = int(os.environ.get("EXAMPLES", "4"))
"""Examples of each case; `make test-full` tries more."""

LENGTHS = st.lists(st.sampled_from([*range(1, 20), 31, 32, 33, 48, 49, 90]), min_size=2, max_size=9)


def texts_of(lengths: list[int]) -> list[str]:
    return [("red 1 a green 22 c " * 9)[n : n + length] for n, length in enumerate(lengths)]


@pytest.mark.parametrize("case", CASES)
@settings(deadline=None, max_examples=EXAMPLES)
@given(lengths=LENGTHS, repeated=st.integers(1, 40), data=st.data())
def test_a_texts_bits_are_its_own(bare, threads, case, lengths, repeated, data) -> None:
    trunk = encoder(case, bare.trunk.tokenizer)
    texts = [*texts_of(lengths), *texts_of(lengths[:1] * repeated)]
    h = trunk.encode(texts)
    order = data.draw(st.permutations(range(len(texts))))
    assert torch.equal(trunk.encode([texts[n] for n in order]), h[order])
    n = data.draw(st.integers(0, len(texts) - 1))
    assert torch.equal(trunk.encode([texts[n]])[0], h[n])
    assert torch.equal(trunk.encode(texts[: n + 1]), h[: n + 1])


@pytest.mark.parametrize("case", CASES)
def test_a_pass_in_tiles_computes_what_the_model_does(bare, case) -> None:
    trunk = encoder(case, bare.trunk.tokenizer)
    texts = texts_of([1, 7, 16, 17, 40])
    with torch.no_grad():  # no tiles
        plain = [trunk.pool(trunk.hidden_states(torch.tensor([trunk.tokens(t)]))) for t in texts]
    off = {"rtol": 0.02, "atol": 0.02} if case.endswith(LOWERED) else {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(trunk.encode(texts), torch.cat(plain), **off)


@pytest.mark.parametrize("columns", [5, 8, 13, 24, 384])
@pytest.mark.parametrize("count", [1, 16, 21, 64])
@pytest.mark.parametrize("with_bias", [False, True])
def test_rows_in_tiles_get_the_product_of_all(columns, count, with_bias) -> None:
    """Narrow products, whose columns are filled, and those that are large enough for oneDNN."""
    g = torch.Generator().manual_seed(columns)
    rows, weight = torch.randn(count, 256, generator=g), torch.randn(columns, 256, generator=g)
    bias = torch.randn(columns, generator=g) if with_bias else None
    with torch.inference_mode():
        found = tiled(rows, 16, weight, bias)
        alone = torch.cat([tiled(row[None], 16, weight, bias) for row in rows])
    torch.testing.assert_close(found, functional.linear(rows, weight, bias), rtol=1e-4, atol=1e-3)
    assert torch.equal(found, alone)


@pytest.mark.parametrize("case", ["bert", "qwen3, wide", "gpt2, others"])
def test_what_acts_inside_keeps_to_its_text(bare, threads, case) -> None:
    trunk = encoder(case, bare.trunk.tokenizer)
    texts = texts_of([3, 9, 9, 9, 40])
    width = trunk.width
    weight = torch.randn(width, width, generator=torch.Generator().manual_seed(1))
    for acts in (Tap(block=0), Graft(read=0, write=1, step=lambda x: functional.linear(x, weight))):
        rows = compute_features(acts, trunk, texts)
        alone = [compute_features(acts, trunk, [text]) for text in texts]
        assert torch.equal(torch.cat(alone), rows)


def test_texts_of_one_length_share_passes_where_rows_do_not_mix(bare) -> None:
    texts = texts_of([8] * 40)
    for case, most in (("bert", 32), ("bert, others", 1), ("bert, one head", 1)):
        trunk = encoder(case, bare.trunk.tokenizer)
        assert max(len(ids) for _, ids in trunk.batches(texts)) == most
        assert sorted(n for index, _ in trunk.batches(texts) for n in index) == list(range(40))


def test_the_model_is_left_as_it_was(bare) -> None:
    trunk = encoder("qwen3", bare.trunk.tokenizer)
    trunk.encode(["red 1"])
    with pytest.raises(redhost.UsageError):
        trunk.encode(["red 1", ""])
    assert not any("forward" in m.__dict__ for m in trunk.model.modules())


@pytest.mark.parametrize("case", ["bert, wide", "qwen3, wide"])
def test_autocast_computes_in_its_own_precision(bare, case) -> None:
    """oneDNN's own product refuses a layer whose numbers and weights differ in precision."""
    trunk = encoder(case, bare.trunk.tokenizer)
    with torch.inference_mode():
        for _, ids in trunk.batches(texts_of([3, 9, 40])):
            states = trunk.hidden_states(ids)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                half = trunk.hidden_states(ids).float()
            assert not torch.equal(half, states)
            torch.testing.assert_close(half, states, rtol=0.1, atol=0.1)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpus_bits_keep_to_a_tolerance(bare) -> None:
    trunk = encoder("bert", bare.trunk.tokenizer)
    texts = texts_of([3, 9, 9, 40])
    h = trunk.encode(texts)
    trunk.model.to("cuda")
    try:
        alone = torch.cat([trunk.encode([text]) for text in texts])
        torch.testing.assert_close(trunk.encode(texts), alone, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(alone, h, rtol=1e-3, atol=1e-3)
    finally:
        trunk.model.to("cpu")


def test_a_pack_is_filled_up_to_its_number_of_tokens() -> None:
    ids = [[1] * n for n in (4, 9, 4, 4, 4)]
    by_limit = {
        limit: [[*p.index] for p in packs(ids, tokens=limit)] for limit in (7, 8, 12, 21, 25)
    }
    assert by_limit == {
        7: [[0], [2], [3], [4], [1]],
        8: [[0, 2], [3, 4], [1]],  # a longer text has a pass of its own
        12: [[0, 2, 3], [4], [1]],
        21: [[0, 2, 3, 4], [1]],
        25: [[0, 2, 3, 4, 1]],
    }
    assert [*packs([], tokens=8)] == []


def test_texts_of_all_lengths_share_a_pass(bare) -> None:
    trunk = encoder("bert", bare.trunk.tokenizer)
    lengths = [1, 40, 7, 100, 18, 16, 7, 31, 70]
    ids = [trunk.tokens(text) for text in texts_of(lengths)]
    [pack] = packs(ids, tokens=1024)
    row, places = pack.ids[0], pack.places[0]
    found = [run.of(row)[n].tolist() for run in pack.runs for n in range(run.texts)]
    assert found == [ids[n] for n in pack.index]
    assert all(
        torch.equal(p, torch.arange(run.tokens)) for run in pack.runs for p in run.of(places)
    )
    assert [tile for _, tile in pack.sections] == [1, 16, 32, 64, 128]
    assert all(rows % tile == 0 for rows, tile in pack.sections)
    assert sum(rows for rows, _ in pack.sections) == pack.ids.shape[1]
    assert [n for p in packs(ids, tokens=90) for n in p.index] == [*pack.index]
    assert all(p.ids.shape[1] <= 128 for p in packs(ids, tokens=90))


@pytest.mark.parametrize("tokens", [2, 16, 17, 33, 64, 65, 97, 128, 129, 500])
def test_a_text_wastes_less_than_half_of_its_rows(tokens) -> None:
    tile = tile_of(tokens)
    rows = -(-tokens // tile) * tile
    assert rows - tokens < max(16, min(32, tokens))
    assert tile_of(rows) == tile or rows > 128


@pytest.mark.parametrize("case", ["bert", "qwen3, wide", "llama, grouped heads"])
def test_a_pack_computes_the_bits_of_a_pass_alone(bare, threads, case) -> None:
    trunk = encoder(case, bare.trunk.tokenizer)
    texts = texts_of([1, 40, 7, 18, 7, 90])
    with torch.inference_mode():
        alone = [trunk.pool(trunk.hidden_states(torch.tensor([trunk.tokens(t)]))) for t in texts]
    assert torch.equal(trunk.encode(texts), torch.cat(alone))
