"""Rows of a generating backbone in the feature cache: as many as a text has tokens."""

from __future__ import annotations

import sqlite3

import pytest
import redhost_ray.jobs
import torch

from redhost.core.backbones.feature_cache import FeatureCache

TEXTS = ["one and two", "a", "def f(x):\n    return x", "one and two"]


@pytest.fixture
def cache(composed, tmp_path) -> FeatureCache:
    return FeatureCache(tmp_path, backbone=composed.backbone, fingerprint=composed.fingerprint)


def test_warm_cold_and_none_have_the_same_bits(composed, cache) -> None:
    cold = cache.encode(TEXTS)
    assert torch.equal(cold, composed.backbone.encode(TEXTS))
    assert len(cold) == sum(map(len, TEXTS))
    assert cache.missing(TEXTS) == []
    assert torch.equal(cache.encode(TEXTS), cold)
    assert torch.equal(cache.encode(TEXTS[::-1][:2]), composed.backbone.encode(TEXTS[::-1][:2]))
    bare = FeatureCache(None, backbone=composed.backbone, fingerprint=composed.fingerprint)
    assert torch.equal(bare.encode(TEXTS), cold)
    assert cache.encode([]).shape == (0, composed.backbone.total_width)


def test_what_is_remembered_is_not_computed_again(composed, cache) -> None:
    cache.encode(TEXTS)

    def never(texts):
        raise AssertionError(texts)

    cache.tables[0].compute = never
    assert torch.equal(cache.encode(TEXTS), composed.backbone.encode(TEXTS))


@pytest.mark.parametrize("size", [0, 3, 63, 4 * 64])
def test_a_damaged_row_is_computed_again(composed, cache, size) -> None:
    """The last is whole rows, but four of them, which no text here has."""
    cold = cache.encode(TEXTS)
    with sqlite3.connect(cache.path) as database:
        database.execute("UPDATE rows SET row = ?", (b"\0" * size,))
    database.close()
    assert set(cache.missing(TEXTS)) == set(TEXTS)
    assert torch.equal(cache.encode(TEXTS), cold)


def test_a_worker_pool_leaves_states_to_who_reads_them(composed, speaker_folder, tmp_path) -> None:
    """A shard would come back with a row for each token, and fit no text."""
    from redhost_ray.prefetch import SHARD, FeaturePrefetcher

    from redhost.core.model.build import read_package
    from redhost.registry.package.discover import from_folder

    class Idle:
        def run(self, jobs, *, inputs, workers):
            raise AssertionError(jobs)

    prefetcher = FeaturePrefetcher(
        pool=redhost_ray.jobs.WorkerPool(name="idle", engine=Idle(), workers=2)
    )
    files = read_package(from_folder(speaker_folder))
    texts = [f"text {n}" for n in range(SHARD + 1)]
    assert prefetcher.encode(texts, backbone=composed.backbone, files=files, folder=tmp_path) == 0
