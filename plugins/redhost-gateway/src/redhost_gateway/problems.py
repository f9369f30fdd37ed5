"""Errors that a client sees, in the shape of OpenAI's API."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

__all__ = ["NoAdapterProblem", "Problem", "UnknownModelProblem"]

KINDS: Mapping[int, str] = {429: "rate_limit_error"}
SERVER = 500


class Problem(Exception):  # noqa: N818  (an answer, and no bug)
    """A request that the gateway itself answers.

    Args:
        status: The HTTP status.
        message: What is wrong and what to do; nothing of the request is echoed.
        code: A name for programs.
        retry_after: Seconds after which a retry may succeed.
        closes: Whether the connection ends, because the rest of the request is not read.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        retry_after: int | None = None,
        closes: bool = False,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.code = status, message, code
        self.headers = {"content-type": "application/json"}
        if retry_after is not None:
            self.headers["retry-after"] = str(retry_after)
        if closes:
            self.headers["connection"] = "close"

    @property
    def body(self) -> bytes:
        """The error as JSON."""
        kind = KINDS.get(
            self.status, "api_error" if self.status >= SERVER else "invalid_request_error"
        )
        found = {"message": self.message, "type": kind, "param": None, "code": self.code}
        return msgspec.json.encode({"error": found})


class NoAdapterProblem(Problem):
    """An upstream lacks the chosen expert; another one may have it."""

    def __init__(self, expert: str, why: str) -> None:
        super().__init__(502, f"no upstream has expert {expert!r}: {why}", code="no_adapter")


class UnknownModelProblem(Problem):
    """Nothing here has the model that a request names."""

    def __init__(self) -> None:
        super().__init__(
            404, "no model of that name here; GET /v1/models lists them", code="model_not_found"
        )
