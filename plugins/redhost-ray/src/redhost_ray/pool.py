"""The worker pool: runs jobs on an engine with a number of workers, and caches the results."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

from redhost.core.plugins.manager import Plugins
from redhost.core.types import Progress, in_stage
from redhost.registry.errors import (
    PluginError,
    RedhostError,
    StoreError,
    UsageError,
    suggest,
)
from redhost_ray.cache import JobCache, is_plain
from redhost_ray.job import Engine, Job, JobBatch, JobFiles, JobResult
from redhost_ray.local import LocalEngine

LOCAL = "local"

log = logging.getLogger("redhost")

OnResult = Callable[[Job, JobFiles], None]


class JobsError(RedhostError):
    """Some jobs failed on every attempt; the results of the others are stored."""


@dataclass(frozen=True)
class JobFailure:
    """A job that did not succeed, and why, in one line."""

    job: Job
    reason: str


@dataclass(frozen=True, kw_only=True, eq=False)
class WorkerPool:
    """Runs jobs that are not cached, on an engine.

    Attributes:
        name: The engine's name.
        engine: The engine that runs the jobs.
        workers: Number of jobs at a time.
    """

    name: str
    engine: Engine
    workers: int

    def run(
        self,
        jobs: JobBatch,
        on_result: OnResult,
        *,
        cache: JobCache | None = None,
        progress: Progress | None = None,
    ) -> tuple[JobFailure, ...]:
        """Run every job that is not cached, and pass on the files of all that succeed.

        Args:
            jobs: The jobs.
            on_result: Called with each job and its files as soon as they are available; jobs with
                equal keys each get a call.
            cache: The cache of finished jobs; new results are written to it before they are passed
                on.
            progress: Called with (jobs done, jobs in all).

        Returns:
            The jobs that failed; all others succeeded.
        """
        waiting: dict[str, list[Job]] = {}
        for job in jobs.listed:
            waiting.setdefault(job.key, []).append(job)
        failures: list[JobFailure] = []
        total, progress = len(waiting), in_stage(progress, "jobs")
        # Closed at once on any exception, including Ctrl-C, because closing stops the workers.
        with closing(self._results(waiting, jobs.inputs, cache)) as results:
            for result in results:
                same = waiting.pop(result.key)
                if result.error:
                    failures += [JobFailure(job, result.error) for job in same]
                else:
                    for job in same:
                        on_result(job, result.files)
                if progress is not None:
                    progress(total - len(waiting), total)
        lost = f"engine {self.name!r} returned nothing for it"
        failures += [JobFailure(j, f"{j.name}: {lost}") for same in waiting.values() for j in same]
        return tuple(failures)

    def _results(
        self,
        waiting: Mapping[str, Sequence[Job]],
        inputs: Mapping[str, bytes],
        cache: JobCache | None,
    ) -> Generator[JobResult, None, None]:
        """Yield cached results, then those of the engine."""
        fresh = []
        for key, same in list(waiting.items()):
            files = None if cache is None else cache.get(key)
            if files is None:
                fresh.append(same[0])
            else:
                yield JobResult(key=key, files=dict(files))
        if not fresh:
            return
        run = self.engine.run(fresh, inputs=inputs, workers=self.workers)
        try:
            for result in run:
                self._require_expected(result, waiting)
                if cache is not None and not result.error:
                    self._remember(result, cache)
                yield result
        finally:
            if isinstance(run, Generator):
                run.close()

    def _remember(self, result: JobResult, cache: JobCache) -> None:
        """Put a finished job into the cache; if writing fails, a later run repeats the job."""
        try:
            cache.put(result.key, result.files)
        except StoreError as e:
            log.warning("a finished job is not remembered: %s", e.reason)

    def _require_expected(self, result: JobResult, waiting: Mapping[str, Sequence[Job]]) -> None:
        """Refuse a result that was not requested, or a file outside its folder."""
        if result.key not in waiting:
            raise PluginError(
                f"engine {self.name!r} returned a job that was not submitted",
                found=result.key[:12],
            )
        strange = [n for n in result.files if not is_plain(n)]
        if strange:
            raise PluginError(
                f"engine {self.name!r} returned a file for another folder", found=strange[0]
            )


def choose_pool(plugins: Plugins, *, engine: str, workers: int) -> WorkerPool:
    """Return a pool on an engine, the built-in one or one of a trusted plugin.

    Args:
        plugins: The trusted plugins.
        engine: The engine's name.
        workers: Number of jobs at a time.

    Raises:
        UsageError: If no such engine exists; the message lists the known ones.
    """
    if workers < 1:
        raise UsageError("an engine needs workers", expected="at least 1", found=str(workers))
    known = plugins.collect("redhost_register_engines", builtin={LOCAL: LocalEngine()})
    if engine not in known:
        names = ", ".join(sorted(known))
        raise UsageError(
            f"unknown engine {engine!r}",
            hint=f"{suggest(engine, known)}Known: {names}. {plugins.untrusted_hint()}".rstrip(),
        )
    return WorkerPool(name=engine, engine=known[engine], workers=workers)


def require_all(failures: Sequence[JobFailure], *, of: int) -> None:
    """Raise if any job failed.

    Raises:
        JobsError: If any job failed; the message names the first few.
    """
    if failures:
        shown = "; ".join(f.reason for f in failures[:3])
        raise JobsError(
            f"{len(failures)} of {of} jobs failed",
            found=shown,
            hint="Run it again: what is finished is not done twice.",
        )
