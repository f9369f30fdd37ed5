"""Run a job in this process; every engine calls this in the end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from redhost_author.versions import library_versions

from redhost.registry.errors import RedhostError, UsageError, one_line
from redhost_ray.functions import FUNCTIONS
from redhost_ray.job import Job, JobFiles, JobResult


def run_job(job: Job, inputs: Mapping[str, bytes]) -> JobResult:
    """Run a job in this process.

    Args:
        job: The job.
        inputs: The bytes of its inputs, by sha256; further ones are ignored.

    Returns:
        Its result; an exception is returned as an error of one line that names the job.
    """
    try:
        return JobResult(key=job.key, files=dict(_files_of(job, inputs)))
    except RedhostError as e:
        return JobResult(key=job.key, error=f"{job.name}: {e}")
    except Exception as e:
        return JobResult(key=job.key, error=one_line(f"{job.name}: {type(e).__name__}: {e}"))


def _files_of(job: Job, inputs: Mapping[str, bytes]) -> JobFiles:
    _require_same_versions(job)
    function = FUNCTIONS.get(job.function)
    if function is None or function.version != job.version:
        raise UsageError(
            f"this worker has no function {job.function!r} of version {job.version}",
            expected=f"one of {', '.join(sorted(FUNCTIONS))}",
            hint="Install the same redhost on every machine.",
        )
    with _torch_threads(job.threads):
        return function.call(job, {name: inputs[sha] for name, sha in job.inputs.items()})


@contextmanager
def _torch_threads(count: int) -> Iterator[None]:
    """Set the number of torch threads within a ``with`` block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _require_same_versions(job: Job) -> None:
    """Refuse a job whose key was made with different library versions, as bits may differ."""
    here = library_versions()
    for name in sorted(job.versions.keys() | here.keys()):
        if job.versions.get(name) != here.get(name):
            raise UsageError(
                "this worker cannot promise the same bits",
                expected=f"{name} {job.versions.get(name)}, as where the job was made",
                found=f"{name} {here.get(name)}",
                hint="Install the same versions on every machine.",
            )
