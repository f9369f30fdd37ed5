"""Jobs as data, the pool that runs them, and engines that plugins may provide."""

from .core.jobs.cache import JobCache
from .core.jobs.job import Engine, Job, JobBatch, JobResult
from .core.jobs.pool import JobFailure, WorkerPool, choose_pool
from .core.jobs.runner import run_job
from .core.jobs.sweep import SweepResult, sweep

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
