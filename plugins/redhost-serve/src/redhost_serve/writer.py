"""Texts that are gone on with: one thread makes a token of each in turn, so all come along."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from redhost_serve.batcher import FullError

__all__ = ["Writer"]

T = TypeVar("T")


class Writer:
    """One thread, and a bounded number of texts under way.

    Args:
        queue: How many.
    """

    def __init__(self, *, queue: int) -> None:
        self.queue, self.under_way = queue, 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="redhost-writer")

    def __len__(self) -> int:
        """Return how many texts are under way."""
        return self.under_way

    async def write(self, begin: Callable[[], Iterator[T]]) -> AsyncGenerator[T | None, None]:
        """Yield None when a text has begun, then its tokens; it ends early when it is closed.

        Args:
            begin: Returns what yields them, or refuses.

        Raises:
            FullError: If as many are under way as may be.
        """
        if self.under_way >= self.queue:
            raise FullError
        self.under_way += 1
        try:
            tokens = await self._call(begin)
            yield None
            while (token := await self._call(partial(next, tokens, None))) is not None:
                yield token
        finally:
            self.under_way -= 1

    async def _call(self, step: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, step)

    def close(self) -> None:
        """Make the tokens that are asked for, then stop."""
        self._thread.shutdown()
