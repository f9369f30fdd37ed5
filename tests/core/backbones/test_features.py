"""h of several layers and of tokens: what it is made of, and that a text's bits are its own."""

from __future__ import annotations

import math

import pytest
import torch
from redhost_peft.inside import check_taps

import redhost
from redhost.core.backbones.encoder import wide_features
from redhost.core.backbones.token_hashing import ONES, TokenHashing
from redhost.core.bus.bus import LayerNorm
from redhost.registry.package.manifest import Features

PLACES = [[145, 155, 87, 107], [291, 311, 174, 215], [436, 466, 261, 322]]
SIGNS = [[-1.0, -1.0, 1.0, 1.0], [-1.0, -1.0, -1.0, 1.0], [-1.0, -1.0, 1.0, -1.0]]

TEXTS = ("red 1", "green 22 and red 3", "a", "green 22 and red 3", "x y z 1 2 3 4 5 6 7")


def load(folder, **options) -> redhost.Backbone:
    return redhost.Backbone.load(f"hf:{folder}", pooling="mean", **options)


@pytest.fixture(scope="module")
def wide(model_folder) -> redhost.Backbone:
    return load(model_folder, features=Features(layers=(0, 1), tokens=32))


def test_h_is_the_pooled_states_of_its_layers_each_normalised(model_folder, wide) -> None:
    model, d = wide.trunk.model, wide.trunk.model.config.hidden_size
    assert wide.width == 2 * d + 32
    for text in TEXTS:
        with torch.inference_mode():
            states = model(
                input_ids=torch.tensor([wide.trunk.tokens(text)]), output_hidden_states=True
            ).hidden_states
        for part, layer in ((slice(0, d), 0), (slice(d, 2 * d), 1)):
            expected = torch.nn.functional.layer_norm(states[layer][0].mean(0), (d,))
            torch.testing.assert_close(wide.encode([text])[0, part], expected, atol=1e-5, rtol=1e-4)


def test_the_bus_norm_leaves_it_as_it_is(wide) -> None:
    h = wide.encode(TEXTS)
    z = LayerNorm(width=wide.width, eps=wide.eps)(h)
    torch.testing.assert_close(z, h, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_a_text_has_the_same_bits_in_any_company(model_folder, pooling) -> None:
    backbone = redhost.Backbone.load(f"hf:{model_folder}", pooling=pooling, features="wide")
    at_once, mixed = backbone.encode(TEXTS), backbone.encode(TEXTS[::-1]).flip(0)
    alone = torch.cat([backbone.encode([t]) for t in TEXTS])
    assert torch.equal(at_once, alone) and torch.equal(at_once, mixed)


def test_wide_is_the_first_and_last_states_and_hashed_tokens(model_folder) -> None:
    backbone = load(model_folder, features="wide")
    config = backbone.trunk.model.config
    assert backbone.trunk.features == wide_features(backbone.trunk.model)
    assert backbone.trunk.features == Features(
        layers=(0, config.num_hidden_layers), tokens=4 * config.hidden_size
    )


def test_what_makes_up_h_is_part_of_its_identity(model_folder, wide) -> None:
    others = (None, Features(layers=(0, 1)), Features(layers=(1, 0), tokens=32), "wide")
    found = {load(model_folder, features=f).fingerprint() for f in others}
    assert len(found | {wide.fingerprint()}) == 5


@pytest.mark.parametrize("layers", [(0, 0), (99,), (0, 1, 99)])
def test_layers_that_are_not_there_are_refused(model_folder, layers) -> None:
    with pytest.raises(redhost.UsageError, match="different ones of 0"):
        load(model_folder, features=Features(layers=layers))


def test_hashed_counts_are_the_sum_of_their_tokens_signed_entries() -> None:
    hashing = TokenHashing.of(width=16, vocabulary=50)
    row = hashing.row([3, 7, 3, 3])
    expected = torch.zeros(16)
    for token, count in ((3, 3), (7, 1)):
        for place, sign in zip(hashing.places[token], hashing.signs[token], strict=True):
            expected[place] += sign * (1 + math.log(count))
    torch.testing.assert_close(row, torch.nn.functional.layer_norm(expected, (16,)))


def test_inner_products_of_hashed_counts_are_those_of_the_counts() -> None:
    """Over many tokens: places fill evenly, signs even out, different tokens are orthogonal."""
    hashing = TokenHashing.of(width=512, vocabulary=4000)
    assert set(hashing.signs.unique().tolist()) == {-1.0, 1.0}
    assert abs(float(hashing.signs.mean())) < 0.03
    filled = torch.bincount(hashing.places.flatten(), minlength=512)
    assert filled.min() > 0.5 * 4000 * ONES / 512 and filled.max() < 1.6 * 4000 * ONES / 512
    every = torch.stack([hashing.row([v]) for v in range(4000)])  # LN(e_v)
    products = every @ every.T / 512
    off = products[~torch.eye(4000, dtype=torch.bool)]
    assert abs(float(off.mean())) < 1e-3 and float(off.std()) < 1.2 / 512**0.5


def test_all_tokens_of_a_text_count_where_the_blocks_read_the_first_alone(model_folder) -> None:
    features = Features(layers=(0,), tokens=32)
    cut = load(model_folder, features=features, max_tokens=4)
    whole = load(model_folder, features=features)
    text = "green 22 and red 3"
    assert len(cut.trunk.tokens(text)) == 4 < len(whole.trunk.tokens(text))
    short, long = cut.encode([text])[0], whole.encode([text])[0]
    assert torch.equal(short[-32:], long[-32:]) and not torch.equal(short[:-32], long[:-32])


def test_places_and_signs_are_the_same_on_every_machine() -> None:
    hashing = TokenHashing.of(width=1000, vocabulary=3)
    assert hashing.places.tolist() == PLACES
    assert hashing.signs.tolist() == SIGNS


def test_experts_of_such_a_backbone_read_and_write_at_the_end(wide) -> None:
    assert check_taps("mine", wide, reads="final", writes="final") is None
    for reads, writes in (("0", "final"), ("0", "0")):
        broken = check_taps("mine", wide, reads=reads, writes=writes)
        assert broken is not None and (broken.code, broken.found) == ("tap_unknown", "0")
