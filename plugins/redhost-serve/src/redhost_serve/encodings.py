"""Bodies that are compressed: decoded within the limit, whatever they would expand to."""

from __future__ import annotations

import zlib

from redhost_serve.problems import HttpProblem

__all__ = ["decoded"]

GZIP = 31
"""zlib's number for gzip with the largest window."""


def decoded(body: bytes, encoding: bytes, *, limit: int) -> bytes:
    """Return a body without its content encoding.

    Args:
        body: The body as it was sent.
        encoding: The value of its Content-Encoding header.
        limit: Maximum number of bytes in the result; no more are ever decoded.

    Raises:
        HttpProblem: 415 for an encoding other than gzip, 413 if the result is too long, 400 if it
            is not gzip.
    """
    name = encoding.strip().lower()
    if name in {b"", b"identity"} or not body:
        return body
    if name not in {b"gzip", b"x-gzip"}:
        headers = {"Accept-Encoding": "gzip"}
        raise HttpProblem(415, "the body's encoding is not gzip, or none", headers=headers)
    result = bytearray()
    while body:  # gzip may have several members, one after the other
        member = zlib.decompressobj(GZIP)
        try:
            result += member.decompress(body, limit + 1 - len(result))
        except zlib.error:
            raise HttpProblem(400, "the body is not gzip") from None
        if len(result) > limit:
            raise HttpProblem(413, f"the decoded body has more than {limit} bytes")
        if not member.eof:
            raise HttpProblem(400, "the body's gzip is cut short")
        body = member.unused_data
    return bytes(result)
