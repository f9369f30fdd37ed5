"""A worker process of the local engine: ``python -m redhost_ray.worker``.

Reads requests from standard input and writes results to standard output. Messages are msgpack
frames, preceded by their length in eight bytes. Nothing is pickled, and the code of the program
that started the worker is not run again.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import IO

import msgspec

from redhost_ray.job import Job

LENGTH = 8


class WorkerRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A job, with the inputs that the job before it did not have."""

    job: Job
    inputs: dict[str, bytes]


def read_frame(stream: IO[bytes]) -> bytes | None:
    """Return the next frame, or None if the stream ends, even within a frame."""
    head = stream.read(LENGTH)
    if len(head) < LENGTH:
        return None
    size = int.from_bytes(head, "big")
    body = stream.read(size)
    return body if len(body) == size else None


def write_frame(stream: IO[bytes], body: bytes) -> None:
    """Write a frame and flush the stream."""
    stream.write(len(body).to_bytes(LENGTH, "big"))
    stream.write(body)
    stream.flush()


def main() -> None:
    """Run jobs until there are no more requests."""
    from redhost_ray.runner import (
        run_job,  # imported here: hosts import this module but run no jobs
    )

    # Output that libraries print must not end up between frames: redirect it to standard error.
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    inputs: dict[str, bytes] = {}
    while (frame := read_frame(sys.stdin.buffer)) is not None:
        request = msgspec.msgpack.decode(frame, type=WorkerRequest)
        inputs |= request.inputs
        inputs = {sha: inputs[sha] for sha in request.job.inputs.values()}
        write_frame(replies, msgspec.msgpack.encode(run_job(request.job, inputs)))


if __name__ == "__main__":
    with suppress(BrokenPipeError):  # the process that started this one has ended
        main()
