"""What a client gets when something is wrong: one status, one line, never its own input."""

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


class HttpProblem(Exception):  # noqa: N818  (an answer, not a failure of ours)
    """An answer other than 200.

    Args:
        status: The HTTP status.
        reason: One line.
        headers: Headers that go with it.
    """

    def __init__(
        self, status: int, reason: str, *, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(reason)
        self.status, self.reason, self.headers = status, reason, dict(headers or {})


def problem_of(error: redhost.RedhostError, *, otherwise: int = 422) -> HttpProblem:
    """Return what a client gets for an error.

    Args:
        error: What was raised.
        otherwise: The status of errors that have none of their own.
    """
    status = next((s for kind, s in _STATUS.items() if isinstance(error, kind)), otherwise)
    return HttpProblem(status, str(error), headers={"Retry-After": "1"} if status == 503 else None)  # noqa: PLR2004
