"""Errors as clients receive them: one status, one line, never their own input."""

from __future__ import annotations

from collections.abc import Mapping

import redhost

__all__ = ["HttpProblem", "problem_of"]

_STATUS: Mapping[type[redhost.RedhostError], int] = {
    redhost.errors.SwapInProgressError: 409,
    redhost.errors.LockHeldError: 409,
    redhost.errors.StaleGenerationError: 412,
    redhost.errors.UnknownNameError: 404,
}


CODES: Mapping[int, str] = {
    400: "invalid_request",
    401: "wrong_token",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    408: "request_timeout",
    413: "body_too_long",
    415: "unsupported_encoding",
    431: "headers_too_long",
    500: "server_error",
    503: "unavailable",
}
"""Names for programs, as OpenAI's routes give them."""


class HttpProblem(Exception):  # noqa: N818  (an HTTP answer, not a failure of the server)
    """An answer other than 200.

    Args:
        status: The HTTP status.
        reason: One line.
        headers: Additional headers.
        code: A name for programs, which OpenAI's routes give; the status has one.
    """

    def __init__(
        self,
        status: int,
        reason: str,
        *,
        headers: Mapping[str, str] | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(reason)
        self.status, self.reason, self.headers = status, reason, dict(headers or {})
        self.code = code or CODES.get(status, "refused")


def problem_of(error: redhost.RedhostError, *, otherwise: int = 422) -> HttpProblem:
    """Return the HTTP answer to an error.

    Args:
        error: The error.
        otherwise: The status of errors without a status of their own.
    """
    status = next((s for kind, s in _STATUS.items() if isinstance(error, kind)), otherwise)
    return HttpProblem(status, str(error), headers={"Retry-After": "1"} if status == 503 else None)  # noqa: PLR2004
