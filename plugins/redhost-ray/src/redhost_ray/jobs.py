"""Jobs as data, the pool that runs them, and engines that plugins may provide."""

from redhost_ray.cache import JobCache
from redhost_ray.job import Engine, Job, JobBatch, JobResult
from redhost_ray.pool import JobFailure, WorkerPool, choose_pool
from redhost_ray.runner import run_job
from redhost_ray.sweep import SweepResult, sweep

__all__ = [
    "Engine",
    "Job",
    "JobBatch",
    "JobCache",
    "JobFailure",
    "JobResult",
    "SweepResult",
    "WorkerPool",
    "choose_pool",
    "run_job",
    "sweep",
]
