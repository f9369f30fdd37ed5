"""A worker process of the local engine: ``python -m redhost.core.engines.worker``.

Reads orders on standard input and writes results on standard output: msgpack frames, each behind
its length in eight bytes. No pickle, and no code of whoever started it is run again.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import IO

import msgspec

from .engine import Job, run_job

__all__ = ["Order", "main", "read_frame", "write_frame"]

LENGTH = 8


class Order(msgspec.Struct, frozen=True, kw_only=True):
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
    """Do orders until there are no more."""
    # What libraries print must not end up between frames: it goes where messages go.
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    held: dict[str, bytes] = {}
    while (frame := read_frame(sys.stdin.buffer)) is not None:
        order = msgspec.msgpack.decode(frame, type=Order)
        held |= order.inputs
        held = {sha: held[sha] for sha in order.job.inputs.values()}
        write_frame(replies, msgspec.msgpack.encode(run_job(order.job, held)))


if __name__ == "__main__":
    with suppress(BrokenPipeError):  # whoever started this process is gone
        main()
