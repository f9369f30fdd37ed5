"""A minimal HTTP client, used by the measurements."""

from __future__ import annotations

import http.client
import json
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from redhost_serve.wire import MODEL

__all__ = ["Client", "Reply"]

INFER = f"/v2/models/{MODEL}/infer"


@dataclass(frozen=True, kw_only=True)
class Reply:
    """An answer: its status and its JSON."""

    status: int
    body: Any

    @property
    def generation(self) -> int:
        """The generation that made the answer to an infer request."""
        return int(self.body["model_version"])

    def output(self, name: str) -> list[Any]:
        """Return an output of an infer request."""
        found: list[Any] = next(o["data"] for o in self.body["outputs"] if o["name"] == name)
        return found


class Client:
    """One connection, kept open; not thread-safe.

    Args:
        url: The server's address, ``http://HOST:PORT``.
        token: The secret that authorises changes.
    """

    def __init__(self, url: str, *, token: str | None = None) -> None:
        self.connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
        self.headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.connection.close()

    def get(self, path: str) -> Reply:
        """Get a JSON document."""
        return self._send("GET", path, None)

    def post(self, path: str, payload: object | bytes) -> Reply:
        """Post JSON, or bytes as they are."""
        return self._send(
            "POST", path, payload if isinstance(payload, bytes) else json.dumps(payload)
        )

    def infer(self, texts: Sequence[str]) -> Reply:
        """Request answers to texts."""
        tensor = {"name": "text", "datatype": "BYTES", "shape": [len(texts)], "data": list(texts)}
        return self.post(INFER, {"inputs": [tensor]})

    def swap(self, generation: int | None, *, expected: int | None = None) -> Reply:
        """Request a swap."""
        payload = {"generation": generation, "expected_generation": expected}
        return self.post("/admin/swap", payload)

    def _send(self, method: str, path: str, body: str | bytes | None) -> Reply:
        self.connection.request(method, path, body, self.headers)
        answer = self.connection.getresponse()
        data = answer.read()
        is_json = (answer.getheader("Content-Type") or "").startswith("application/json")
        return Reply(status=answer.status, body=json.loads(data) if is_json else data)
