"""Feature shards: the same rows whoever computes them, and none computed twice."""

from __future__ import annotations

import pytest
import torch

import redhost
from redhost.core.composing.workspace import read_package
from redhost.core.engines import shards
from redhost.core.engines.local import LocalEngine
from redhost.core.engines.shards import SHARD, Ahead
from redhost.registry.discover import from_folder

TEXTS = [f"{word} {n} {'x' * (n % 5)}" for n in range(200) for word in ("red", "green", "blue")]


class Counting:
    """The local engine, remembering the jobs it was given."""

    def __init__(self) -> None:
        self.jobs: list[redhost.Job] = []

    def run(self, jobs, *, inputs, workers):
        self.jobs += jobs
        return LocalEngine().run(jobs, inputs=inputs, workers=workers)


@pytest.fixture
def encode_ahead(backbone, backbone_folder):
    """Return the function that fills a cache: the engine, and how many texts it lacked."""
    files = read_package(from_folder(backbone_folder))

    def encode(folder, *, workers: int = 1, texts=TEXTS, engine=None):
        engine = engine or Counting()
        crew = redhost.Crew(name="c", engine=engine, workers=workers)
        ahead = Ahead(crew=crew)
        return engine, ahead.encode(texts, backbone=backbone, files=files, folder=folder)

    return encode


def cached(backbone, manifest, folder) -> torch.Tensor:
    cache = redhost.FeatureCache(folder, backbone=backbone, fingerprint=manifest.fingerprint)
    assert folder is None or cache.missing(TEXTS) == []
    return cache.encode(TEXTS)


@pytest.mark.parametrize("workers", [1, 2])
def test_shards_are_bit_for_bit_what_is_computed_here(
    encode_ahead, backbone, manifest, tmp_path, workers
) -> None:
    engine, lacked = encode_ahead(tmp_path, workers=workers)
    assert lacked == len(TEXTS) and len(engine.jobs) == -(-len(TEXTS) // SHARD)
    assert torch.equal(cached(backbone, manifest, tmp_path), backbone.encode(TEXTS))


def test_a_rerun_computes_only_what_is_missing(encode_ahead, tmp_path) -> None:
    first = TEXTS[: SHARD + 1]
    encode_ahead(tmp_path, texts=first)
    engine, lacked = encode_ahead(tmp_path)
    asked = [t for job in engine.jobs for t in job.arguments["texts"]]
    assert lacked == len(asked) and sorted(asked) == sorted(set(TEXTS) - set(first))
    assert encode_ahead(tmp_path)[1] == 0


def test_a_run_that_stopped_goes_on_from_the_shards_it_had(encode_ahead, tmp_path) -> None:
    class Stops(Counting):
        def run(self, jobs, *, inputs, workers):
            yield next(super().run(jobs, inputs=inputs, workers=workers))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        encode_ahead(tmp_path, engine=Stops())
    engine, lacked = encode_ahead(tmp_path)
    assert lacked == len(TEXTS) - SHARD
    assert sum(len(j.arguments["texts"]) for j in engine.jobs) == lacked


def test_a_few_texts_are_not_worth_a_worker(encode_ahead, tmp_path) -> None:
    engine, lacked = encode_ahead(tmp_path, texts=TEXTS[:SHARD])
    assert (engine.jobs, lacked) == ([], 0)


def test_without_a_cache_nothing_is_computed_ahead(encode_ahead) -> None:
    engine, lacked = encode_ahead(None)
    assert (engine.jobs, lacked) == ([], 0)


class Wrong:
    """An engine whose rows are too few."""

    def run(self, jobs, *, inputs, workers):
        for job in jobs:
            yield redhost.JobResult(key=job.key, files={"h.f32": bytes(8)})


def test_a_shard_of_another_size_is_refused(encode_ahead, tmp_path) -> None:
    with pytest.raises(redhost.IntegrityError, match=f"{SHARD} rows of width 16, found 2 numbers"):
        encode_ahead(tmp_path, engine=Wrong())


def test_the_twin_without_that_guard_remembers_what_no_backbone_computed(
    encode_ahead, backbone, manifest, tmp_path, monkeypatch
) -> None:
    import numpy as np

    def trusting(cache, texts, data, width) -> None:
        cache.remember(texts, np.resize(np.frombuffer(data, "<f4"), (len(texts), width)))

    monkeypatch.setattr(shards, "_remember", trusting)
    encode_ahead(tmp_path, engine=Wrong())
    assert not cached(backbone, manifest, tmp_path).any()


def test_a_host_with_a_crew_makes_the_same_generation(
    installed, home, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(shards, "SHARD", 16)  # the toy world has few texts
    plugins, engine = redhost.Plugins(()), Counting()
    serial = redhost.Host.open(tmp_path / "serial", backbone="toy", plugins=plugins)
    many = redhost.Host.open(home, backbone="toy", plugins=plugins)
    many.crew = redhost.Crew(name="c", engine=engine, workers=2)
    one, two = serial.recompose(), many.recompose()
    assert one.router.digest == two.router.digest
    told, same = serial.evaluate(), many.evaluate()
    assert told == same and told.rows == 18
    assert len(engine.jobs) >= 4


def test_a_host_with_one_local_worker_has_no_crew(home) -> None:
    assert redhost.Host.open(home, plugins=redhost.Plugins(())).crew is None
    with pytest.raises(redhost.UsageError, match="unknown engine 'mars'"):
        redhost.Host.open(home, plugins=redhost.Plugins(()), engine="mars")
