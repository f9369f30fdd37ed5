"""The feature cache: nothing is computed twice, and nothing stale is ever used."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

import redhost
from redhost.core.backbones.feature_cache import FeatureCache

TEXTS = ["red 1", "green 2", "red 1"]


class Counted:
    """A backbone that counts the texts it encodes."""

    def __init__(self, backbone: redhost.Backbone) -> None:
        self.backbone, self.encoded, self.task = backbone, 0, backbone.task
        self.width, self.device, self.layout = backbone.width, backbone.device, None
        self.kernels, self.eps, self.trunk = backbone.kernels, backbone.eps, self

    def encode(self, texts):
        self.encoded += len(texts)
        return self.backbone.encode(texts)


@pytest.fixture
def counted(backbone) -> Counted:
    return Counted(backbone)


def cache(counted, folder: Path | None, fingerprint: str = "f") -> FeatureCache:
    return FeatureCache(folder, backbone=counted, fingerprint=fingerprint)


def test_each_distinct_text_is_computed_once(counted, tmp_path) -> None:
    cold = cache(counted, tmp_path).encode(TEXTS)
    assert counted.encoded == 2
    warm = cache(counted, tmp_path).encode([*TEXTS, "blue 3"])
    assert counted.encoded == 3
    assert torch.equal(warm[:3], cold) and torch.equal(cold[0], cold[2])
    assert torch.equal(cold, counted.backbone.encode(TEXTS))


def test_without_a_folder_nothing_is_retained(counted) -> None:
    for _ in range(2):
        cache(counted, None).encode(["red 1"])
    assert counted.encoded == 2


def test_another_backbone_never_sees_these_rows(counted, tmp_path) -> None:
    cache(counted, tmp_path, "one").encode(TEXTS)
    cache(counted, tmp_path, "two").encode(TEXTS)
    assert counted.encoded == 4


def test_another_number_of_threads_never_sees_these_rows(counted, tmp_path) -> None:
    cache(counted, tmp_path).encode(TEXTS)
    torch.set_num_threads(2)
    cache(counted, tmp_path).encode(TEXTS)
    assert counted.encoded == 4


def test_control_a_key_without_the_fingerprint_would_answer_with_stale_rows(
    counted, tmp_path, monkeypatch
) -> None:
    """Break the guard: name the file by something else than the backbone's content."""
    other = Counted(dataclasses.replace(counted.backbone))
    first = cache(counted, tmp_path)
    first.encode(TEXTS)
    second = cache(other, tmp_path, "another")
    second.tables[0].path = first.path
    second.encode(TEXTS)
    assert other.encoded == 0  # stale: it was never asked


def test_no_texts_give_no_rows(counted, tmp_path) -> None:
    assert cache(counted, tmp_path).encode([]).shape == (0, counted.width)


def test_a_cache_that_has_no_place_is_done_without(counted, tmp_path, caplog) -> None:
    (tmp_path / "file").touch()
    found = cache(counted, tmp_path / "file" / "features").encode(TEXTS)
    assert torch.equal(found, counted.backbone.encode(TEXTS))
    assert "cannot be used" in caplog.text


def test_progress_counts_what_is_missing(counted, tmp_path) -> None:
    seen: list[tuple[int, int]] = []
    cache(counted, tmp_path).encode(TEXTS, progress=lambda *x: seen.append(x))
    cache(counted, tmp_path).encode(TEXTS, progress=lambda *x: seen.append(x))
    assert seen == [(2, 2)]
