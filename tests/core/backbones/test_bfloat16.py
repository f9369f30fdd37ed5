"""Products in bfloat16: an engine of redhost's own, with vectors of its own."""

from __future__ import annotations

import copy

import pytest
import torch
from redhost_generate.decode import generate

import redhost
from redhost import UsageError
from redhost.core.backbones import bfloat16
from redhost.core.backbones.bfloat16 import BF16, BFloat16Encoder, is_capable
from redhost.core.backbones.feature_cache import cached_encode
from redhost.core.composition.recompose import compose
from redhost.plugins import EngineEncoder, TextEncoder
from redhost.registry.errors import BackboneMismatchError

TEXTS = ["red 61 b", "green 62 c", "blue 63 f", "nothing 4", "red 1 " * 20]

capable = pytest.mark.skipif(not is_capable(), reason="needs a processor's products in bfloat16")


def off(h: torch.Tensor, other: torch.Tensor) -> float:
    return float(((h - other).norm(dim=1) / other.norm(dim=1)).max())


@capable
def test_vectors_are_others_within_the_tolerance_and_are_not_mixed_up(bare, tmp_path) -> None:
    plain, lowered = bare, bare.to(BF16)
    h = plain.encode(TEXTS)
    assert 1e-4 < off(lowered.encode(TEXTS), h) <= BFloat16Encoder.tolerance
    assert (plain.trunk.engine, lowered.trunk.engine) == (None, BF16)
    for backbone in (plain, lowered):  # one folder of features
        encoded = cached_encode(backbone, "f" * 64, tmp_path)(TEXTS)
        assert torch.equal(encoded, backbone.encode(TEXTS))
    assert torch.equal(plain.encode(TEXTS), h), "the encoder it was made from is another now"


@capable
def test_states_are_read_and_a_record_is_held_to_float32(bare) -> None:
    plain, lowered = bare.trunk, bare.to(BF16).trunk
    for found, expected in zip(lowered.states(TEXTS), plain.states(TEXTS), strict=True):
        assert 0 < off(found, expected) <= BFloat16Encoder.tolerance
    with lowered.in_float32():
        assert torch.equal(lowered.encode(TEXTS), plain.encode(TEXTS))


@capable
def test_a_generation_knows_its_engine_and_a_change_goes_back(installed, home) -> None:
    with redhost.Host.open(home, backbone="toy", device=BF16) as host:
        assert host.recompose().generation == 1
    with redhost.Host.open(home, backbone="toy") as host:  # no device is named
        assert [a.label for a in host.predict(TEXTS[:3])] == ["b", "c", "f"]
        assert isinstance(host.composed.backbone.trunk, BFloat16Encoder)
        assert host.generations.load(1).settings["device"] == BF16
        host.recompose()
        assert isinstance(host.composed.backbone.trunk, BFloat16Encoder)
    with redhost.Host.open(home, backbone="toy", device="cpu") as host:
        host.recompose()
        assert type(host.composed.backbone.trunk) is TextEncoder
    with redhost.Host.open(home, backbone="toy", device=BF16) as host:  # as it was composed
        assert type(host.composed.backbone.trunk) is TextEncoder


@capable
def test_an_expert_is_not_refused_for_what_the_engine_rounds(home) -> None:
    """range3 promises .1212 off its domain in float32, and has .1264 in bfloat16."""
    with redhost.Host.open(home, backbone="tiny", device=BF16) as host:
        assert {f"range{n}" for n in range(1, 6)} <= {*host.recompose().experts}


@capable
def test_adapters_act_inside_and_their_records_hold(speaker_folder, adapter_packages) -> None:
    packages = list(adapter_packages.values())
    composed = compose(speaker_folder, packages, device=BF16).composed
    assert {*composed.cards} == {*adapter_packages}
    texts = ["def f1(x):", "the cat", "1 + 1"]
    with composed.backbone.trunk.in_float32():
        h = composed.backbone.encode(texts)
    assert 0 < off(composed.backbone.encode(texts), h) <= BFloat16Encoder.tolerance
    made = [
        [t.id for t in generate(composed, "3 + 4 = ", max_tokens=8, temperature=0)] for _ in "ab"
    ]
    assert made[0] == made[1] != []


def test_a_processor_without_such_products_is_refused(monkeypatch, bare) -> None:
    monkeypatch.setattr(bfloat16, "CAPABLE", frozenset({"none"}))
    with pytest.raises(UsageError, match="bf16"):
        bare.to(BF16)


class Mixing(EngineEncoder):
    """An engine that gives a text other bits in company."""

    engine, tolerance = "mixing", 0.1

    def passes(self, ids):
        for index, rows in super().passes(ids):
            yield index, rows + (1e-6 if len(ids) > 1 else 0)


def test_an_engine_is_held_to_both_promises(bare) -> None:
    EngineEncoder(bare.trunk).hold_to(bare.trunk)
    with pytest.raises(BackboneMismatchError, match="mixes texts"):
        Mixing(bare.trunk).hold_to(bare.trunk)
    other = copy.deepcopy(bare.trunk.model)
    for parameter in other.parameters():
        parameter.data += 0.01
    moved = TextEncoder(model=other, tokenizer=bare.trunk.tokenizer, pooling=bare.trunk.pooling)
    with pytest.raises(BackboneMismatchError, match="is not the one on torch"):
        EngineEncoder(moved).hold_to(bare.trunk)


@pytest.mark.parametrize("device", ["nonsense", "cuda"])
def test_a_device_that_is_not_there_is_refused(device, bare) -> None:
    if device == "cuda" and torch.cuda.is_available():
        pytest.skip("it is there")
    with pytest.raises(UsageError, match=device):
        bare.to(device)
