"""The function of a Ray worker, imported there by name: Ray sends no other code of redhost.

Ray pickles what it sends between its own processes; arguments are bytes and strings, and the
result is bytes.
"""

from __future__ import annotations

import msgspec

from redhost_ray.job import Job
from redhost_ray.runner import run_job

__all__ = ["do"]


def do(request: bytes, digests: list[str], *inputs: bytes) -> bytes:
    """Run one job.

    Args:
        request: The job, as msgpack.
        digests: The sha256 of each input.
        inputs: The bytes of each, fetched by Ray.

    Returns:
        The result, as msgpack.
    """
    job = msgspec.msgpack.decode(request, type=Job)
    return msgspec.msgpack.encode(run_job(job, dict(zip(digests, inputs, strict=True))))
