"""A generation that is loaded beside the one that answers; texts that are encoded once for both."""

from __future__ import annotations

import gc
import shutil

import pytest

import redhost
from redhost.core.model.stored import GenerationLoader
from redhost.plugins import shared_features

from .conftest import TEXTS, comparable, open_host, open_live


def test_a_prepared_generation_answers_beside_the_served_one_and_then_in_its_place(
    home, monkeypatch
) -> None:
    live = open_live(home)
    other = live.prepare(1)
    assert (other.generation, live.generation) == (1, 2)
    assert open_host(home).generations.current() == 2
    assert comparable(other.answer(TEXTS)) == comparable(open_host(home).load(1).answer(TEXTS))
    monkeypatch.setattr(GenerationLoader, "read", None)  # nothing is left to be read
    assert live.swap(1) == 1
    assert live.composed is other and open_host(home).generations.current() == 1


def test_a_swap_reads_anew_what_was_prepared_and_let_go(home) -> None:
    live = open_live(home)
    other = live.prepare(1)
    del other
    gc.collect()
    shutil.rmtree(home / "generations" / "1")
    with pytest.raises(redhost.errors.UnknownNameError):
        live.swap(1)
    assert live.generation == 2


def test_what_is_prepared_stays_on_disk_while_it_is_held(home) -> None:
    live = open_live(home)
    other = live.prepare(1)
    assert {lease.generation for lease in redhost.plugins.Leases(home).live()} == {1, 2}
    del other
    gc.collect()
    assert [lease.generation for lease in redhost.plugins.Leases(home).live()] == [2]


def test_what_cannot_be_served_is_not_prepared(home) -> None:
    live = open_live(home)
    router = home / "generations" / "1" / "router.safetensors"
    router.write_bytes(router.read_bytes()[:-1])
    with pytest.raises(redhost.errors.IntegrityError):
        live.prepare(1)
    assert live.generation == 2
    assert [lease.generation for lease in redhost.plugins.Leases(home).live()] == [2]


def test_texts_are_encoded_once_for_generations_of_one_backbone(home, monkeypatch) -> None:
    live = open_live(home)
    one, two = live.prepare(1), live.composed
    expected = [comparable(model.answer(TEXTS)) for model in (one, two)]
    passes = []
    real = type(one.backbone).encode
    monkeypatch.setattr(
        type(one.backbone), "encode", lambda self, texts: passes.append(texts) or real(self, texts)
    )
    features = shared_features((one, two), TEXTS)
    found = [
        comparable(model.answer(TEXTS, features=h))
        for model, h in zip((one, two), features, strict=True)
    ]
    assert found == expected and passes == [TEXTS]
    assert shared_features((one,), TEXTS) == [None]


def test_generations_on_two_loaded_backbones_share_nothing(home) -> None:
    one, two = open_host(home).load(1), open_host(home).load(2)
    assert shared_features((one, two), TEXTS) == [None, None]
