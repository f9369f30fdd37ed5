"""The engine: as many tasks in flight as there are workers; Ray places them.

Tasks run at least once: the job of a dead node runs again elsewhere, and returns the same bytes. A
result is fetched to the driver as soon as it is ready, so a node that dies later loses no finished
result.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from redhost_ray.cluster import joined
from redhost_ray.job import Job, JobResult
from redhost_ray.work import do

__all__ = ["RETRIES", "RayEngine"]

RETRIES = 3
"""How often Ray restarts a task whose worker or node died."""


class RayEngine:
    """Runs jobs as Ray tasks."""

    def run(
        self, jobs: Sequence[Job], *, inputs: Mapping[str, bytes], workers: int
    ) -> Iterator[JobResult]:
        """Yield results as tasks finish; closing the generator cancels those that have not."""
        with joined(workers) as ray:
            store = _ObjectStore(ray, jobs, inputs)
            task = ray.remote(num_cpus=1, max_retries=RETRIES)(do)
            waiting = deque(jobs)
            flying: dict[Any, Job] = {}

            def fill() -> None:
                while waiting and len(flying) < workers:
                    job = waiting.popleft()
                    flying[task.remote(*store.arguments(job))] = job

            fill()
            try:
                while flying:
                    [done], _ = ray.wait(list(flying), num_returns=1)
                    job = flying.pop(done)
                    fill()  # no worker waits while the caller uses a result
                    yield _result(ray, done, job)
            finally:
                for unfinished in flying:
                    ray.cancel(unfinished, force=True)


class _ObjectStore:
    """Inputs in Ray's object store: put there once, and released with the last job that uses them.

    Workers on any machine receive bytes, never a path of this machine.
    """

    def __init__(self, ray: Any, jobs: Sequence[Job], inputs: Mapping[str, bytes]) -> None:
        self.ray, self.inputs = ray, inputs
        self.readers = Counter(sha for job in jobs for sha in set(job.inputs.values()))
        self.refs: dict[str, Any] = {}

    def arguments(self, job: Job) -> list[Any]:
        """Return the arguments of a task: the job, its inputs' digests, a reference to each."""
        digests = sorted(set(job.inputs.values()))
        refs = [self._ref(sha) for sha in digests]
        return [msgspec.msgpack.encode(job), digests, *refs]

    def _ref(self, sha: str) -> Any:
        ref = self.refs.pop(sha, None)
        if ref is None:
            ref = self.ray.put(self.inputs[sha])
        self.readers[sha] -= 1
        if self.readers[sha]:
            self.refs[sha] = ref
        return ref


def _result(ray: Any, done: Any, job: Job) -> JobResult:
    """Fetch a result; a task that Ray gave up on becomes an error of its job."""
    try:
        return msgspec.msgpack.decode(ray.get(done), type=JobResult)
    except ray.exceptions.RayError as e:
        line = str(e).strip().splitlines()[0]
        end = f"Ray gave up on it after {RETRIES + 1} attempts ({type(e).__name__}: {line})"
        return JobResult(key=job.key, error=f"{job.name}: {end}")
