"""Feature shards: the same rows from any worker, and none computed twice."""

from __future__ import annotations

from dataclasses import replace

import pytest
import redhost_ray.jobs
import torch
from redhost_ray import prefetch as prefetch_module
from redhost_ray.local import LocalEngine
from redhost_ray.prefetch import FeaturePrefetcher
from redhost_ray.workers import open_workers

import redhost
from redhost.core.backbones.bfloat16 import BF16, is_capable
from redhost.core.backbones.feature_cache import FeatureCache
from redhost.core.model.build import read_package
from redhost.registry.package.discover import from_folder

TEXTS = [f"{word} {n} {'x' * (n % 5)}" for n in range(50) for word in ("red", "green", "blue")]
SHARD = 64


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a few texts be three shards."""
    assert len(TEXTS) > 2 * SHARD
    monkeypatch.setattr(prefetch_module, "SHARD", SHARD)


class Counting:
    """The local engine, remembering the jobs it was given."""

    def __init__(self) -> None:
        self.jobs: list[redhost_ray.jobs.Job] = []

    def run(self, jobs, *, inputs, workers):
        self.jobs += jobs
        return LocalEngine().run(jobs, inputs=inputs, workers=workers)


@pytest.fixture
def prefetch(backbone, backbone_folder):
    """Return the function that fills a cache: the engine, and how many texts it lacked."""
    files = read_package(from_folder(backbone_folder))

    def encode(folder, *, workers: int = 1, texts=TEXTS, engine=None, backbone=backbone):
        engine = engine or Counting()
        pool = redhost_ray.jobs.WorkerPool(name="c", engine=engine, workers=workers)
        prefetcher = FeaturePrefetcher(pool=pool)
        return engine, prefetcher.encode(texts, backbone=backbone, files=files, folder=folder)

    return encode


def cached(backbone, manifest, folder) -> torch.Tensor:
    cache = FeatureCache(folder, backbone=backbone, fingerprint=manifest.fingerprint)
    assert folder is None or cache.missing(TEXTS) == []
    return cache.encode(TEXTS)


@pytest.mark.parametrize("workers", [1, 2])
def test_shards_are_bit_for_bit_what_is_computed_here(
    prefetch, backbone, manifest, tmp_path, workers
) -> None:
    engine, lacked = prefetch(tmp_path, workers=workers)
    assert lacked == len(TEXTS) and len(engine.jobs) == -(-len(TEXTS) // SHARD)
    assert torch.equal(cached(backbone, manifest, tmp_path), backbone.encode(TEXTS))


@pytest.mark.skipif(not is_capable(), reason="needs a processor's products in bfloat16")
def test_workers_compute_on_the_engine_of_the_backbone(prefetch, backbone, manifest, tmp_path):
    lowered = backbone.to(BF16)
    prefetch(tmp_path, backbone=lowered)
    h = cached(lowered, manifest, tmp_path)
    assert torch.equal(h, lowered.encode(TEXTS))
    assert not torch.equal(h, backbone.encode(TEXTS))


def test_a_rerun_computes_only_what_is_missing(prefetch, tmp_path) -> None:
    first = TEXTS[: SHARD + 1]
    prefetch(tmp_path, texts=first)
    engine, lacked = prefetch(tmp_path)
    encoded = [t for job in engine.jobs for t in job.arguments["texts"]]
    assert lacked == len(encoded) and sorted(encoded) == sorted(set(TEXTS) - set(first))
    assert prefetch(tmp_path)[1] == 0


def test_a_run_that_stopped_goes_on_from_the_shards_it_had(prefetch, tmp_path) -> None:
    class Stops(Counting):
        def run(self, jobs, *, inputs, workers):
            yield next(super().run(jobs, inputs=inputs, workers=workers))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prefetch(tmp_path, engine=Stops())
    engine, lacked = prefetch(tmp_path)
    assert lacked == len(TEXTS) - SHARD
    assert sum(len(j.arguments["texts"]) for j in engine.jobs) == lacked


def test_a_few_texts_are_not_worth_a_worker(prefetch, tmp_path) -> None:
    engine, lacked = prefetch(tmp_path, texts=TEXTS[:SHARD])
    assert (engine.jobs, lacked) == ([], 0)


def test_without_a_cache_nothing_is_prefetched(prefetch) -> None:
    engine, lacked = prefetch(None)
    assert (engine.jobs, lacked) == ([], 0)


class Wrong:
    """An engine whose rows are too few."""

    def run(self, jobs, *, inputs, workers):
        for job in jobs:
            yield redhost_ray.jobs.JobResult(key=job.key, files={"h.f32": bytes(8)})


def test_a_shard_of_another_size_is_refused(prefetch, tmp_path) -> None:
    with pytest.raises(
        redhost.errors.IntegrityError, match=f"{SHARD} rows of width 16, found 2 numbers"
    ):
        prefetch(tmp_path, engine=Wrong())


def test_control_without_that_guard_remembers_what_no_backbone_computed(
    prefetch, backbone, manifest, tmp_path, monkeypatch
) -> None:
    import numpy as np

    def trusting(cache, texts, data, width) -> None:
        cache.remember(texts, np.resize(np.frombuffer(data, "<f4"), (len(texts), width)))

    monkeypatch.setattr(prefetch_module, "_remember", trusting)
    prefetch(tmp_path, engine=Wrong())
    assert not cached(backbone, manifest, tmp_path).any()


def test_a_host_with_a_worker_pool_makes_the_same_generation(
    installed, home, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(prefetch_module, "SHARD", 16)  # the toy world has few texts
    plugins, engine = redhost.plugins.Plugins(()), Counting()
    serial = redhost.Host.open(tmp_path / "serial", backbone="toy", plugins=plugins)
    many = redhost.Host.open(home, backbone="toy", plugins=plugins)
    pool = redhost_ray.jobs.WorkerPool(name="c", engine=engine, workers=2)
    many = redhost.Host(replace(many.session, pool=FeaturePrefetcher(pool=pool)))
    one, two = serial.recompose(), many.recompose()
    assert one.router.digest == two.router.digest
    evaluation, same = serial.evaluate(), many.evaluate()
    assert evaluation == same and evaluation.rows == 18
    assert len(engine.jobs) >= 4


def test_a_host_has_the_workers_it_is_given_and_no_others(home) -> None:
    plugins = redhost.plugins.Plugins(())
    assert redhost.Host.open(home, plugins=plugins).session.pool is None
    workers = open_workers("local", 2, plugins)
    assert redhost.Host.open(home, plugins=plugins, workers=workers).session.pool is workers
    with pytest.raises(redhost.UsageError, match="unknown engine 'mars'"):
        open_workers("mars", 2, plugins)
