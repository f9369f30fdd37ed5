"""Verify many experts: check the computed part of their contracts with a worker pool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from redhost_author.verifying import Verifier

from redhost.core.types import Progress
from redhost.registry.package.checked import Violation
from redhost.registry.package.readers import BackboneFiles, ExpertFiles
from redhost_ray.cache import JobCache
from redhost_ray.functions import verify_package
from redhost_ray.job import Job, JobBatch, JobFiles
from redhost_ray.pool import WorkerPool, require_all


@dataclass(frozen=True, kw_only=True, eq=False)
class VerificationTask:
    """An expert that passed every static check, and the backbone it fits, if there is one."""

    name: str
    files: ExpertFiles
    backbone: BackboneFiles | None


def verify_many(
    tasks: Sequence[VerificationTask],
    *,
    pool: WorkerPool,
    cache: JobCache | None = None,
    progress: Progress | None = None,
) -> list[tuple[Violation, ...]]:
    """Verify experts; return the violations of each, in order.

    Experts of a plugin's form are verified in this process, because jobs only run built-in parts.

    Args:
        tasks: The experts.
        pool: The worker pool.
        cache: The cache of results: those of the same bytes and versions are not computed again.
        progress: Called with (experts done, experts in all).

    Raises:
        JobsError: If a verification failed on every attempt and has no result.
    """
    jobs = JobBatch()
    places: dict[str, list[int]] = {}
    results: list[tuple[Violation, ...]] = [()] * len(tasks)
    for n, task in enumerate(tasks):
        if ":" in task.files.manifest.form:
            results[n] = Verifier().expert(task.files, backbone=task.backbone)
            continue
        inputs = jobs.put("expert", task.files.files)
        if task.backbone is not None:
            inputs |= jobs.put("backbone", task.backbone.files)
        job = jobs.add(f"expert {task.name!r}", verify_package, {}, inputs)
        places.setdefault(job.key, []).append(n)

    def on_result(job: Job, made: JobFiles) -> None:
        violations = msgspec.json.decode(made["violations.json"], type=tuple[Violation, ...])
        for n in places[job.key]:
            results[n] = violations

    require_all(pool.run(jobs, on_result, cache=cache, progress=progress), of=len(jobs.listed))
    return results
