"""What a Ray worker does. Imported there by name, so this module is all that travels of our code.

Ray pickles what it carries between its own processes; what we hand it are bytes and strings, and
what comes back are bytes.
"""

from __future__ import annotations

import msgspec

import redhost

__all__ = ["do"]


def do(order: bytes, digests: list[str], *inputs: bytes) -> bytes:
    """Do one job.

    Args:
        order: The job, as msgpack.
        digests: The sha256 of each input.
        inputs: The bytes of each, fetched by Ray from wherever they are.

    Returns:
        The result, as msgpack.
    """
    job = msgspec.msgpack.decode(order, type=redhost.Job)
    return msgspec.msgpack.encode(redhost.run_job(job, dict(zip(digests, inputs, strict=True))))
