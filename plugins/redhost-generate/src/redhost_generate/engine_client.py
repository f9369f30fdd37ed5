"""Texts from a server with OpenAI's API, as a system of `redhost lab decoding`.

A prompt is sent as its tokens, so that all systems read the same ones.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

__all__ = ["EngineClient", "Request"]

DATA = b"data: {"
"""The beginning of an event of a stream that is no end."""

Request = Callable[[Sequence[int], str, int], Mapping[str, Any]]
"""The prompt's tokens, its adapter's name, the number of tokens → what is posted."""


class EngineClient:
    """A server that continues texts, each with its adapter.

    Args:
        address: Its URL.
        request: What is posted for a text.
    """

    def __init__(self, address: str, request: Request) -> None:
        self.place, self.request = urlsplit(address).netloc, request

    def generate(
        self, prompts: Sequence[Sequence[int]], names: Sequence[str], *, tokens: int
    ) -> tuple[list[str], float, float]:
        """Continue texts at the same time, each with its adapter.

        Args:
            prompts: Tokens of the prompts.
            names: The adapter of each.
            tokens: Tokens of each text.

        Returns:
            The texts, the seconds until all have their first token, and until all have the last.
        """
        begin = time.perf_counter()

        def one(ids: Sequence[int], name: str) -> tuple[str, float]:
            parts, first = list[str](), 0.0
            for part in self._stream(self.request(ids, name, tokens)):
                first = first or time.perf_counter() - begin
                parts.append(part)
            return "".join(parts), first

        with ThreadPoolExecutor(len(prompts)) as pool:
            texts, firsts = zip(*pool.map(one, prompts, names), strict=True)
        return [*texts], max(firsts), time.perf_counter() - begin

    def _stream(self, request: Mapping[str, Any]) -> Iterator[str]:
        """Yield the parts of a text.

        Raises:
            RuntimeError: If the server refuses.
        """
        body = json.dumps({**request, "stream": True})
        headers = {"content-type": "application/json"}
        with closing(http.client.HTTPConnection(self.place)) as connection:
            connection.request("POST", "/v1/completions", body, headers)
            answer = connection.getresponse()
            if answer.status != http.client.OK:
                raise RuntimeError(f"{self.place} answers {answer.status}: {answer.read()!r}")
            for line in answer:
                if line.startswith(DATA):
                    yield json.loads(line[len(DATA) - 1 :])["choices"][0]["text"]
