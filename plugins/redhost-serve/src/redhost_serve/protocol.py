"""HTTP parsing with bounds: uvicorn's own parser keeps headers of any size in memory."""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from redhost_serve.limits import HEAD_BYTES, raw_headers, refusal
from redhost_serve.problems import HttpProblem

__all__ = ["BoundedProtocol"]


class BoundedProtocol(HttpToolsProtocol):
    """A connection that reads only so many bytes that are no body: headers, trailers, extensions.

    The bound is that of a head; one chunk from the system may exceed it, and is checked by
    `RequestLimits`.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._overhead = 0

    def data_received(self, data: bytes) -> None:
        """Parse bytes; refuse the request if they hold nothing but overhead for too long."""
        self._overhead += len(data)
        super().data_received(data)
        if self._overhead > HEAD_BYTES and not self.transport.is_closing():
            self._refuse_head()

    def on_headers_complete(self) -> None:
        """Begin a request."""
        self._overhead = 0
        super().on_headers_complete()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; a trailer, which comes after the body, is dropped."""
        if self.cycle is None or self.scope is not self.cycle.scope:
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        """Take bytes of a body."""
        self._overhead = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request."""
        self._overhead = 0
        super().on_message_complete()

    def _refuse_head(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            reason = f"the request has more than {HEAD_BYTES} bytes of headers"
            problem = HttpProblem(431, reason, headers={"Connection": "close"})
            headers, body = refusal({}, problem)
            lines = [b"HTTP/1.1 431 Request Header Fields Too Large"]
            lines += [b"%b: %b" % header for header in raw_headers(headers)]
            self.transport.write(b"\r\n".join([*lines, b"", body]))
        self.transport.close()
