"""Jobs as data, and the protocol of the engines that run them.

A job names a function of a small closed set (`redhost_ray.functions`), with JSON-able arguments and
the sha256 of every file it reads. Its key is the digest over all of these, so finished work is
recognised. Nothing is unpickled from disk, and no code is transferred: an engine passes jobs and
bytes to `redhost_ray.runner.run_job` on any machine. (Ray uses pickle as its transport between our
own processes; the content is bytes and names.)
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
from redhost_author.versions import library_versions

JobFiles = Mapping[str, bytes]
"""Bytes by file name: the inputs or outputs of a job."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One piece of work, as plain data.

    Attributes:
        name: A description for people, e.g. ``expert 'range3'``; not part of the key.
        function: The name of a `JobFunction`.
        version: The function's version, raised whenever its outputs change.
        arguments: Arguments that JSON can represent.
        inputs: sha256 by file name.
        threads: Number of torch threads. Bits may depend on it, so a job fixes it, and results are
            independent of the number of workers.
        versions: Versions of the libraries on which its bits depend.
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
        """The sha256 over everything on which the outputs depend."""
        fields = msgspec.to_builtins(self)
        del fields["name"]
        return hashlib.sha256(msgspec.json.encode(fields, order="sorted")).hexdigest()


class JobResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a job: its files, or an error of one line."""

    key: str
    files: dict[str, bytes] = {}
    error: str = ""


@dataclass(frozen=True)
class JobFunction:
    """A function that jobs can name, and the version that is part of their keys."""

    name: str
    version: int
    call: Callable[[Job, JobFiles], JobFiles]


def job_function(
    name: str, version: int
) -> Callable[[Callable[[Job, JobFiles], JobFiles]], JobFunction]:
    """Decorate a function from a job and its input files to files, so that jobs can name it.

    Args:
        name: The function's name in jobs.
        version: The function's version; raise it whenever outputs change.
    """
    return lambda call: JobFunction(name, version, call)


class Engine(Protocol):
    """Runs jobs; the pool caches, skips and counts them."""

    def run(
        self, jobs: Sequence[Job], *, inputs: Mapping[str, bytes], workers: int
    ) -> Iterator[JobResult]:
        """Yield the result of every job as it finishes, in any order.

        A generator that is closed early (Ctrl-C) stops its workers.

        Args:
            jobs: The jobs to run; each key occurs once.
            inputs: The bytes of every input, by sha256.
            workers: How many jobs may run at a time, at least 1.
        """
        ...


class JobBatch:
    """Jobs to run together, and their inputs, each stored once.

    Args:
        threads: Number of torch threads of each job.
    """

    def __init__(self, *, threads: int = 1) -> None:
        self.threads = threads
        self.listed: list[Job] = []
        self.inputs: dict[str, bytes] = {}

    def put(self, folder: str, files: JobFiles) -> dict[str, str]:
        """Store input files; return their digests by name, ``FOLDER/NAME``."""
        digests = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
        self.inputs |= {digests[name]: data for name, data in files.items()}
        return {f"{folder}/{name}": digest for name, digest in digests.items()}

    def add(
        self, name: str, function: JobFunction, arguments: dict[str, Any], inputs: Mapping[str, str]
    ) -> Job:
        """Add a job and return it.

        Args:
            name: A description for people.
            function: The function to call.
            arguments: Arguments that JSON can represent.
            inputs: The inputs that `put` returned.
        """
        job = Job(
            name=name,
            function=function.name,
            version=function.version,
            arguments=arguments,
            inputs=dict(inputs),
            threads=self.threads,
            versions=library_versions(),
        )
        self.listed.append(job)
        return job
