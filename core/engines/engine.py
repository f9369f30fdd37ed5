"""Where work runs: jobs as data, and the engines that carry them out.

A job names a function of a small closed set (`core.engines.jobs`), with JSON-able arguments and the
sha256 of every file it reads; its key is the digest over all of that, so what was done once is
known to be done. Nothing is unpickled from disk, and no function travels: an engine hands jobs and
bytes to `run_job` wherever it likes. (Ray pickles between our own processes, as its transport; what
it carries are bytes and names.)
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from ...registry.errors import RedhostError, UsageError, one_line
from ..versions import library_versions

__all__ = ["Engine", "Files", "Job", "JobResult", "Jobs", "run_job"]

Files = Mapping[str, bytes]
"""Bytes by file name: what a job reads, and what it makes."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One piece of work, as plain data.

    Attributes:
        name: Who it is for, for people: ``expert 'range3'``. No part of the key.
        function: A name in `core.engines.jobs.FUNCTIONS`.
        version: Of that function: raised whenever its outputs change.
        arguments: What JSON can say.
        inputs: sha256 by file name.
        threads: torch threads it computes with: bits may depend on them, so a job fixes them,
            and the number of workers changes nothing.
        versions: Of the libraries its bits depend on.
    """

    name: str
    function: str
    version: int
    arguments: dict[str, Any]
    inputs: dict[str, str]
    threads: int
    versions: dict[str, str]

    @property
    def key(self) -> str:
        """The sha256 over all that the outputs depend on."""
        told = msgspec.to_builtins(self)
        del told["name"]
        return hashlib.sha256(msgspec.json.encode(told, order="sorted")).hexdigest()


class JobResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a job: its files, or one line that says why there are none."""

    key: str
    files: dict[str, bytes] = {}
    error: str = ""


class Engine(Protocol):
    """Runs jobs somewhere. Keeping, skipping and counting them is not its business."""

    def run(
        self, jobs: Sequence[Job], *, inputs: Mapping[str, bytes], workers: int
    ) -> Iterator[JobResult]:
        """Yield the result of every job as it finishes, in any order.

        A generator that is closed early (Ctrl-C) stops its workers.

        Args:
            jobs: What to do; each key occurs once.
            inputs: The bytes of every input, by sha256.
            workers: How many jobs may run at a time, at least 1.
        """
        ...


class Jobs:
    """Jobs in the making, and the bytes they read, each kept once.

    Args:
        threads: torch threads each computes with.
    """

    def __init__(self, *, threads: int = 1) -> None:
        self.threads = threads
        self.listed: list[Job] = []
        self.inputs: dict[str, bytes] = {}

    def put(self, folder: str, files: Files) -> dict[str, str]:
        """Take files that jobs read; return their inputs, named ``FOLDER/NAME``."""
        digests = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
        self.inputs |= {digests[name]: data for name, data in files.items()}
        return {f"{folder}/{name}": digest for name, digest in digests.items()}

    def add(
        self, name: str, function: str, arguments: dict[str, Any], inputs: Mapping[str, str]
    ) -> Job:
        """Add a job and return it.

        Args:
            name: Who it is for.
            function: What to call.
            arguments: What JSON can say.
            inputs: What `put` returned.
        """
        from .jobs import FUNCTIONS

        job = Job(
            name=name,
            function=function,
            version=FUNCTIONS[function].version,
            arguments=arguments,
            inputs=dict(inputs),
            threads=self.threads,
            versions=library_versions(),
        )
        self.listed.append(job)
        return job


def run_job(job: Job, inputs: Mapping[str, bytes]) -> JobResult:
    """Do a job here and now: what every engine calls in the end.

    Args:
        job: The job.
        inputs: The bytes of its inputs, by sha256; there may be more.

    Returns:
        Its result; an exception becomes one line that says who failed.
    """
    try:
        return JobResult(key=job.key, files=dict(_files_of(job, inputs)))
    except RedhostError as e:
        return JobResult(key=job.key, error=f"{job.name}: {e}")
    except Exception as e:
        return JobResult(key=job.key, error=one_line(f"{job.name}: {type(e).__name__}: {e}"))


def _files_of(job: Job, inputs: Mapping[str, bytes]) -> Files:
    from .jobs import FUNCTIONS, threads

    _require_same_versions(job)
    function = FUNCTIONS.get(job.function)
    if function is None or function.version != job.version:
        raise UsageError(
            f"this worker has no function {job.function!r} of version {job.version}",
            expected=f"one of {', '.join(sorted(FUNCTIONS))}",
            hint="Install the same redhost on every machine.",
        )
    with threads(job.threads):
        return function.call(job, {name: inputs[sha] for name, sha in job.inputs.items()})


def _require_same_versions(job: Job) -> None:
    """Refuse to compute under a key that promises the bits of other libraries."""
    here = library_versions()
    for name in sorted(job.versions.keys() | here.keys()):
        if job.versions.get(name) != here.get(name):
            raise UsageError(
                "this worker cannot promise the same bits",
                expected=f"{name} {job.versions.get(name)}, as where the job was made",
                found=f"{name} {here.get(name)}",
                hint="Install the same versions on every machine.",
            )
