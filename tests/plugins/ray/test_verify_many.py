"""Verification by a worker pool: the results of `Verifier`, cached by content."""

from __future__ import annotations

import msgspec
import pytest
import redhost_ray.jobs
from redhost_author.verifying import Verifier
from redhost_ray import verify_many as verify_many_module
from redhost_ray.local import LocalEngine
from redhost_ray.pool import JobsError
from redhost_ray.verify_many import VerificationTask, verify_many

from redhost.core.model.build import read_package
from redhost.registry.package.discover import from_folder
from redhost.registry.package.readers import read_expert


class Counting:
    """The local engine, remembering the jobs it started."""

    def __init__(self) -> None:
        self.started: list[str] = []

    def run(self, jobs, *, inputs, workers):
        self.started += [job.name for job in jobs]
        return LocalEngine().run(jobs, inputs=inputs, workers=workers)


@pytest.fixture
def tasks(expert_folders, backbone_folder, tmp_path) -> list[VerificationTask]:
    """Three valid experts, and one that disturbs others more than its manifest says."""
    backbone = read_package(from_folder(backbone_folder))
    tasks = []
    for name, folder in expert_folders.items():
        files = read_expert(from_folder(folder)).unwrap("it")
        tasks.append(VerificationTask(name=name, files=files, backbone=backbone))
    content = dict(tasks[0].files.files)
    manifest = msgspec.json.decode(content["expert.json"])
    content["expert.json"] = msgspec.json.encode({**manifest, "off_domain": 1e-6})
    loud = read_expert(content).unwrap("it")
    return [*tasks, VerificationTask(name="loud", files=loud, backbone=backbone)]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_pools_results_are_those_computed_here(tasks, workers) -> None:
    pool = redhost_ray.jobs.WorkerPool(name="c", engine=LocalEngine(), workers=workers)
    here = [Verifier().expert(t.files, backbone=t.backbone) for t in tasks]
    assert verify_many(tasks, pool=pool) == here
    assert [[v.code for v in vs] for vs in here] == [[], [], [], ["off_domain"]]


def test_a_result_is_computed_again_for_other_bytes_only(tasks, tmp_path) -> None:
    cache, engine = redhost_ray.jobs.JobCache(tmp_path), Counting()
    pool = redhost_ray.jobs.WorkerPool(name="c", engine=engine, workers=1)
    first = verify_many(tasks[:3], pool=pool, cache=cache)
    assert verify_many(tasks, pool=pool, cache=cache)[:3] == first
    assert engine.started == [f"expert {n!r}" for n in ("red", "green", "blue", "loud")]
    alone = VerificationTask(name="red", files=tasks[0].files, backbone=None)
    verify_many([alone], pool=pool, cache=cache)
    assert len(engine.started) == 5  # without the backbone it is another job


def test_equal_experts_under_two_names_have_one_result_each(tasks) -> None:
    engine = Counting()
    pool = redhost_ray.jobs.WorkerPool(name="c", engine=engine, workers=1)
    twin = VerificationTask(name="twin", files=tasks[3].files, backbone=tasks[3].backbone)
    one, two = verify_many([tasks[3], twin], pool=pool)
    assert one == two and one[0].code == "off_domain" and len(engine.started) == 1


def test_no_result_is_an_error_and_never_ok(tasks) -> None:
    class Broken:
        def run(self, jobs, *, inputs, workers):
            for job in jobs:
                yield redhost_ray.jobs.JobResult(key=job.key, error=f"{job.name}: lost")

    with pytest.raises(JobsError, match="1 of 1 jobs failed: found expert 'red': lost"):
        verify_many(
            tasks[:1], pool=redhost_ray.jobs.WorkerPool(name="c", engine=Broken(), workers=1)
        )


def test_control_that_ignores_failures_says_ok(tasks, monkeypatch) -> None:
    class Broken:
        def run(self, jobs, *, inputs, workers):
            for job in jobs:
                yield redhost_ray.jobs.JobResult(key=job.key, error="lost")

    monkeypatch.setattr(verify_many_module, "require_all", lambda *_, **__: None)
    pool = redhost_ray.jobs.WorkerPool(name="c", engine=Broken(), workers=1)
    assert verify_many([tasks[3]], pool=pool) == [()]  # loud passes
