"""What a Ray worker does. Imported there by name, so this module is all that travels of our code.

Ray pickles what it carries between its own processes; what it gets are bytes and strings, and what
it returns are bytes.
"""

from __future__ import annotations

import msgspec

import redhost

__all__ = ["do"]


def do(request: bytes, digests: list[str], *inputs: bytes) -> bytes:
    """Do one job.

    Args:
        request: The job, as msgpack.
        digests: The sha256 of each input.
        inputs: The bytes of each, fetched by Ray from wherever they are.

    Returns:
        The result, as msgpack.
    """
    job = msgspec.msgpack.decode(request, type=redhost.jobs.Job)
    return msgspec.msgpack.encode(
        redhost.jobs.run_job(job, dict(zip(digests, inputs, strict=True)))
    )
