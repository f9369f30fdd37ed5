"""Jobs as data, and the protocol of the engines that run them.

A job names a function of a small closed set (`core.jobs.functions`), with JSON-able arguments and
the sha256 of every file it reads; its key is the digest over all of that, so finished work is
recognised. Nothing is unpickled from disk, and no code travels: an engine passes jobs and bytes to
`core.jobs.runner.run_job` wherever it likes. (Ray pickles between our own processes, as its
transport; what it carries are bytes and names.)
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from ..digests import library_versions

JobFiles = Mapping[str, bytes]
"""Bytes by file name: what a job reads, and what it makes."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One piece of work, as plain data.

    Attributes:
        name: What it is for, for people: ``expert 'range3'``. No part of the key.
        function: The name of a `JobFunction`.
        version: Of that function: raised whenever its outputs change.
        arguments: What JSON can represent.
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
        fields = msgspec.to_builtins(self)
        del fields["name"]
        return hashlib.sha256(msgspec.json.encode(fields, order="sorted")).hexdigest()


class JobResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a job: its files, or one line that says why there are none."""

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
    """Make a function from a job and the bytes it reads to files one that jobs can name.

    Args:
        name: The name in jobs.
        version: Raise it whenever the function's outputs change.
    """
    return lambda call: JobFunction(name, version, call)


class Engine(Protocol):
    """Runs jobs somewhere. Caching, skipping and counting them is the pool's work."""

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


class JobBatch:
    """Jobs to run together, and the bytes they read, each stored once.

    Args:
        threads: torch threads each computes with.
    """

    def __init__(self, *, threads: int = 1) -> None:
        self.threads = threads
        self.listed: list[Job] = []
        self.inputs: dict[str, bytes] = {}

    def put(self, folder: str, files: JobFiles) -> dict[str, str]:
        """Store files that jobs read; return their inputs, named ``FOLDER/NAME``."""
        digests = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
        self.inputs |= {digests[name]: data for name, data in files.items()}
        return {f"{folder}/{name}": digest for name, digest in digests.items()}

    def add(
        self, name: str, function: JobFunction, arguments: dict[str, Any], inputs: Mapping[str, str]
    ) -> Job:
        """Add a job and return it.

        Args:
            name: What it is for.
            function: What to call.
            arguments: What JSON can represent.
            inputs: What `put` returned.
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
