"""A worker process of the local engine: ``python -m redhost.core.jobs.worker``.

Reads requests on standard input and writes results on standard output: msgpack frames, each behind
its length in eight bytes. No pickle, and no code of whoever started it is run again.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import IO

import msgspec

from .job import Job

LENGTH = 8


class WorkerRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A job, and the bytes it reads that the job before it did not."""

    job: Job
    inputs: dict[str, bytes]


def read_frame(stream: IO[bytes]) -> bytes | None:
    """Return the next frame, or None where the stream ends, be it within one."""
    head = stream.read(LENGTH)
    if len(head) < LENGTH:
        return None
    size = int.from_bytes(head, "big")
    body = stream.read(size)
    return body if len(body) == size else None


def write_frame(stream: IO[bytes], body: bytes) -> None:
    """Write a frame and send it off."""
    stream.write(len(body).to_bytes(LENGTH, "big"))
    stream.write(body)
    stream.flush()


def main() -> None:
    """Do jobs until there are no more requests."""
    from .runner import run_job  # not with this module: hosts read frames, and run no jobs

    # What libraries print must not end up between frames: it goes where messages go.
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    inputs: dict[str, bytes] = {}
    while (frame := read_frame(sys.stdin.buffer)) is not None:
        request = msgspec.msgpack.decode(frame, type=WorkerRequest)
        inputs |= request.inputs
        inputs = {sha: inputs[sha] for sha in request.job.inputs.values()}
        write_frame(replies, msgspec.msgpack.encode(run_job(request.job, inputs)))


if __name__ == "__main__":
    with suppress(BrokenPipeError):  # whoever started this process is gone
        main()
